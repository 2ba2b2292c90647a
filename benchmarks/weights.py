"""Measure memory and speed of ``dumpdiff weights`` and ``weights convert`` next to plain loops.

``python benchmarks/weights.py [--gigabytes 1] [--only REGEX] [--times 2] [--folder DIR]`` writes
models of this size each (see :mod:`large_llama`), compares and converts them, and runs plain loops
over the same files with the safetensors package and torch. Every step runs in a separate process.
Its peak memory is what the kernel reports (ru_maxrss), pages of mapped files included. A checkpoint
is written before its first step and deleted after its last one: the disk holds at most three times
--gigabytes (four times with float32), plus what a step writes.
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

from large_llama import count_layers


class Step(NamedTuple):
    """Program to measure: the checkpoints it reads, and its source. It writes to {out}."""

    reads: tuple[str, ...]
    program: str


STEPS = {
    "dumpdiff weights, two layouts": Step(
        ("megatron", "safetensors"),
        """
import dumpdiff
result = dumpdiff.weights.compare({megatron!r}, {safetensors!r})
assert result.verdict == "agree", result.verdict
assert result.relation == "identical", result.relation
""",
    ),
    "plain loop, torch.load": Step(
        ("megatron",),
        """
import torch
for rank in (0, 1):
    file = f"{megatron}/iter_0000010/mp_rank_0{{rank}}/model_optim_rng.pt"
    state = torch.load(file, mmap=True, weights_only=False)
    assert all(torch.isfinite(value).all() for value in state["model"].values())
""",
    ),
    "dumpdiff weights, one layout": Step(
        ("copy", "safetensors"),
        """
import dumpdiff
result = dumpdiff.weights.compare({copy!r}, {safetensors!r})
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
    copied = safe_open(file, "pt")
    original = safe_open(Path({safetensors!r}) / file.name, "pt")
    for name in copied.keys():
        assert torch.equal(copied.get_tensor(name), original.get_tensor(name))
""",
    ),
    "dumpdiff weights, float32 against bfloat16": Step(
        ("wide", "safetensors"),
        """
import dumpdiff
result = dumpdiff.weights.compare({wide!r}, {safetensors!r})
assert result.relation == "equal", result.relation
""",
    ),
    "dumpdiff weights convert, to Megatron-LM on two ranks": Step(
        ("safetensors",),
        """
import dumpdiff
dumpdiff.weights.convert({safetensors!r}, "megatron", {out!r}, tp=2, verify=False)
""",
    ),
    "dumpdiff weights convert, to torch_dist": Step(
        ("safetensors",),
        """
import dumpdiff
dumpdiff.weights.convert(
    {safetensors!r}, "megatron", {out!r}, ckpt_format="torch_dist", verify=False
)
""",
    ),
    "dumpdiff weights convert, to two ranks of MindSpore": Step(
        ("safetensors",),
        """
import dumpdiff
dumpdiff.weights.convert({safetensors!r}, "mindspore", {out!r}, tp=2, verify=False)
""",
    ),
    "dumpdiff weights convert, to MindSpore Transformers": Step(
        ("safetensors",),
        """
import dumpdiff
dumpdiff.weights.convert({safetensors!r}, "mindspore", {out!r}, verify=False)
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


class Measurement(NamedTuple):
    """The cost of a step."""

    seconds: float
    processor_seconds: float
    megabytes: float  #: peak


def measure_step(program: str) -> Measurement:
    """Return the cost of a program that runs in a separate process."""
    program += """
import resource
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""
    begin = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise SystemExit(completed.stderr)
    seconds = time.perf_counter() - begin
    processor_seconds, kilobytes = map(float, completed.stdout.split()[-2:])
    return Measurement(seconds, processor_seconds, kilobytes / 1024)


def compute_size(path: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def measure_steps(steps: dict[str, Step], folder: Path, layers: int, times: int) -> None:
    """Measure the steps one after the other and print a line for each: the best of several runs."""
    print(
        f"{'':<54} {'read':>8} {'written':>8} {'seconds':>8} {'GB/s':>6} {'CPU s':>7}"
        f" {'peak MB':>8}",
        flush=True,
    )
    pending_steps = list(steps.values())
    out = folder / "out"
    for title, step in steps.items():
        for kind in step.reads:
            if not (folder / kind).exists():
                # in a separate process: a child's peak memory counts from what its parent held
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
        fastest, written = Measurement(float("inf"), float("inf"), float("inf")), 0.0
        for _ in range(times):
            fastest = min(fastest, measure_step(step.program.format(**names)))
            written = compute_size(out) / 1e9
            shutil.rmtree(out, ignore_errors=True)
        read = sum(compute_size(folder / kind) for kind in step.reads) / 1e9
        speed = (read + written) / fastest.seconds
        print(
            f"{title:<54} {read:>5.2f} GB {written:>5.2f} GB {fastest.seconds:>8.1f} {speed:>6.2f}"
            f" {fastest.processor_seconds:>7.1f} {fastest.megabytes:>8.0f}",
            flush=True,
        )
        pending_steps.remove(step)
        for kind in step.reads:
            if not any(kind in other.reads for other in pending_steps):
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
        measure_steps(steps, folder, count_layers(options.gigabytes), options.times)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
