"""Memory and speed of ``dumpdiff weights`` beside a plain loop over both files, in the same run.

``python benchmarks/weights.py [--gigabytes 1] [--folder DIR]`` writes two models of so many gigabytes each (a Llama of
bfloat16 in safetensors, and the same weights as Megatron-LM's state dicts on two tensor-parallel ranks), compares them,
and reads both files once with the safetensors package and with ``torch.load(mmap=True)``. Every step runs in a process
of its own; its peak memory is what the kernel says (ru_maxrss), pages of mapped files included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HIDDEN, FFN, HEADS, GROUPS, VOCABULARY = 2048, 5632, 16, 4, 32_000
_LAYER = HIDDEN * (2 * HIDDEN + 2 * GROUPS * (HIDDEN // HEADS) + 3 * FFN) * 2  # bytes of bfloat16

STEPS = {
    "dumpdiff weights, two layouts": """
import dumpdiff.api
result = dumpdiff.api.weights({megatron!r}, {safetensors!r})
assert result.verdict == "same" and result.relation == "identical", (result.verdict, result.relation)
""",
    "dumpdiff weights, one layout": """
import dumpdiff.api
result = dumpdiff.api.weights({copy!r}, {safetensors!r})
assert result.relation == "identical", result.relation
""",
    "dumpdiff weights, float32 against bfloat16": """
import dumpdiff.api
result = dumpdiff.api.weights({wide!r}, {safetensors!r})
assert result.relation == "equal", result.relation
""",
    "plain loop, safetensors": """
import torch
from safetensors import safe_open
one, other = (safe_open(path, "pt") for path in ({copy!r}, {safetensors!r}))
assert all(torch.equal(one.get_tensor(name), other.get_tensor(name)) for name in one.keys())
""",
    "plain loop, torch.load": """
import torch
for rank in (0, 1):
    state = torch.load(f"{megatron}/iter_0000010/mp_rank_0{{rank}}/model_optim_rng.pt", mmap=True, weights_only=False)
    assert all(torch.isfinite(value).all() for value in state["model"].values())
""",
}


def layers_of(gigabytes: float) -> int:
    """How many layers make a model of this size, two at least."""
    return max(2, round((gigabytes * 1e9 - 4 * VOCABULARY * HIDDEN) / _LAYER))


def places(folder: Path) -> dict[str, Path]:
    """Where each checkpoint lies."""
    files = {name: folder / name / "model.safetensors" for name in ("safetensors", "copy", "wide")}
    return {**files, "megatron": folder / "megatron"}


def make(folder: Path, layers: int) -> None:
    """Write the checkpoints; weights are drawn once and exact in bfloat16."""
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.weights import layouts

    drawn = torch.Generator().manual_seed(1)
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (GROUPS * HIDDEN // HEADS, HIDDEN),
        "self_attn.v_proj": (GROUPS * HIDDEN // HEADS, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    }  # fmt: skip
    named = {f"model.layers.{layer}.{part}.weight": shape for layer in range(layers) for part, shape in shapes.items()}
    named |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (VOCABULARY, HIDDEN))
    named["model.norm.weight"] = (HIDDEN,)
    weights = {name: torch.randn(shape, generator=drawn).mul_(0.02).bfloat16() for name, shape in named.items()}

    files = places(folder)
    settings = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS}
    for name in ("safetensors", "copy", "wide"):
        files[name].parent.mkdir()
        (files[name].parent / "config.json").write_text(json.dumps(settings))
        save_file({key: value.float() if name == "wide" else value for key, value in weights.items()}, files[name])
    raw = {name: value.view(torch.int16).numpy() for name, value in weights.items()}
    ranks = layouts.sharded(layouts.mcore(raw, settings), 2, 1)
    arguments = {"num_attention_heads": HEADS, "num_query_groups": GROUPS, "group_query_attention": True}
    layouts.save_megatron(files["megatron"], ranks, {**arguments, "pipeline_model_parallel_size": 1}, "bfloat16")


def measured(step: str, files: dict[str, Path]) -> tuple[float, float]:
    """(seconds, peak megabytes) of one step in a process of its own."""
    code = STEPS[step].format(**{name: str(path) for name, path in files.items()})
    code += "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began, int(done.stdout.split()[-1]) / 1024


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of each model in bfloat16 (default 1)")
    parser.add_argument("--folder", type=Path, help="where to write them (default: a temporary folder)")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, layers_of(options.gigabytes))
        return
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        # in a process of its own: a child's peak memory counts from what its parent held
        command = [sys.executable, __file__, "--make", str(folder), "--gigabytes", str(options.gigabytes)]
        subprocess.run(command, check=True)
        files = places(folder)
        read = {
            "dumpdiff weights, two layouts": ("megatron", "safetensors"),
            "dumpdiff weights, one layout": ("copy", "safetensors"),
            "dumpdiff weights, float32 against bfloat16": ("wide", "safetensors"),
            "plain loop, safetensors": ("copy", "safetensors"),
            "plain loop, torch.load": ("megatron",),
        }
        print(f"{'':<44} {'read':>8} {'seconds':>8} {'GB/s':>6} {'peak MB':>8}")
        for step, names in read.items():
            size = sum(size_of(files[name]) for name in names) / 1e9
            seconds, peak = np.array([measured(step, files) for _ in range(2)]).min(axis=0)
            print(f"{step:<44} {size:>5.2f} GB {seconds:>8.1f} {size / seconds:>6.2f} {peak:>8.0f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
