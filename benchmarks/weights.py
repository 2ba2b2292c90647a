"""Memory and speed of ``dumpdiff weights`` and ``weights convert`` beside plain loops over the same
files.

``python benchmarks/weights.py [--gigabytes 1] [--only REGEX] [--times 2] [--folder DIR]`` writes
models of so many gigabytes each, see :mod:`large_llama`, compares and converts them, and does with
the safetensors package and torch what a plain loop can. Every step runs in a process of its own;
its peak memory is what the kernel says (ru_maxrss), pages of mapped files included. A checkpoint is
made before its first step and deleted after its last: the disk holds at most three times
--gigabytes (four with float32), and what a step writes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from large_llama import layers_of


class Step(NamedTuple):
    """Something to measure: which checkpoints it reads, and its program; what it writes goes to
    {out}.
    """

    reads: tuple[str, ...]
    program: str


STEPS = {
    "dumpdiff weights, two layouts": Step(
        ("megatron", "safetensors"),
        """
import dumpdiff.api
result = dumpdiff.api.weights({megatron!r}, {safetensors!r})
assert result.verdict == "agree" and result.relation == "identical", (result.verdict, result.relation)
""",
    ),
    "plain loop, torch.load": Step(
        ("megatron",),
        """
import torch
for rank in (0, 1):
    state = torch.load(f"{megatron}/iter_0000010/mp_rank_0{{rank}}/model_optim_rng.pt", mmap=True, weights_only=False)
    assert all(torch.isfinite(value).all() for value in state["model"].values())
""",
    ),
    "dumpdiff weights, one layout": Step(
        ("copy", "safetensors"),
        """
import dumpdiff.api
result = dumpdiff.api.weights({copy!r}, {safetensors!r})
assert result.relation == "identical", result.relation
""",
    ),
    "plain loop, safetensors": Step(
        ("copy", "safetensors"),
        """
import torch
from pathlib import Path
from safetensors import safe_open
for file in sorted(Path({copy!r}).glob("*.safetensors")):
    one, other = (safe_open(place, "pt") for place in (file, Path({safetensors!r}) / file.name))
    assert all(torch.equal(one.get_tensor(name), other.get_tensor(name)) for name in one.keys())
""",
    ),
    "dumpdiff weights, float32 against bfloat16": Step(
        ("wide", "safetensors"),
        """
import dumpdiff.api
result = dumpdiff.api.weights({wide!r}, {safetensors!r})
assert result.relation == "equal", result.relation
""",
    ),
    "dumpdiff weights convert, to Megatron-LM on two ranks": Step(
        ("safetensors",),
        """
import dumpdiff.api
from dumpdiff.convert import Reading, Wanted
dumpdiff.api.convert({safetensors!r}, {out!r}, Wanted("megatron", tensor=2), Reading(), verify=False)
""",
    ),
    "dumpdiff weights convert, to MindSpore Transformers": Step(
        ("safetensors",),
        """
import dumpdiff.api
from dumpdiff.convert import Reading, Wanted
dumpdiff.api.convert({safetensors!r}, {out!r}, Wanted("mindspore"), Reading(), verify=False)
""",
    ),
    "plain loop, safetensors read and written": Step(
        ("safetensors",),
        """
from pathlib import Path
from safetensors.torch import load_file, save_file
Path({out!r}).mkdir()
for file in sorted(Path({safetensors!r}).glob("*.safetensors")):
    save_file(load_file(file), Path({out!r}) / file.name)
""",
    ),
}


def measure_step(program: str) -> tuple[float, float]:
    """(seconds, peak megabytes) of a program in a process of its own."""
    program += "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began, int(done.stdout.split()[-1]) / 1024


def get_size(path: Path) -> int:
    """Bytes of a folder's files."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def run(steps: dict[str, Step], folder: Path, layers: int, times: int) -> None:
    """Measure the steps one after the other, and print a line of each: the best of several
    times.
    """
    print(
        f"{'':<54} {'read':>8} {'written':>8} {'seconds':>8} {'GB/s':>6} {'peak MB':>8}", flush=True
    )
    left = list(steps.values())
    out = folder / "out"
    for title, step in steps.items():
        for kind in step.reads:
            if not (folder / kind).exists():
                # in a process of its own: a child's peak memory counts from what its parent held
                command = [
                    sys.executable,
                    Path(__file__).with_name("large_llama.py"),
                    folder / kind,
                    kind,
                    str(layers),
                ]
                subprocess.run(command, check=True)
        names = {
            kind: str(folder / kind) for kind in ("megatron", "safetensors", "copy", "wide", "out")
        }
        best, written = (float("inf"), float("inf")), 0.0
        for _ in range(times):
            best = min(best, measure_step(step.program.format(**names)))
            written = get_size(out) / 1e9
            shutil.rmtree(out, ignore_errors=True)
        read = sum(get_size(folder / kind) for kind in step.reads) / 1e9
        speed = (read + written) / best[0]
        print(
            f"{title:<54} {read:>5.2f} GB {written:>5.2f} GB {best[0]:>8.1f} {speed:>6.2f} {best[1]:>8.0f}",
            flush=True,
        )
        left.remove(step)
        for kind in step.reads:
            if not any(kind in other.reads for other in left):
                shutil.rmtree(folder / kind)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gigabytes", type=float, default=1.0, help="size of each model in bfloat16 (default 1)"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="the steps whose names have this (default: all)"
    )
    parser.add_argument(
        "--times", type=int, default=2, help="how often each step runs; the best counts (default 2)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write them (default: a temporary folder)"
    )
    options = parser.parse_args()
    steps = {title: step for title, step in STEPS.items() if re.search(options.only, title)}
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        run(steps, folder, layers_of(options.gigabytes), options.times)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
