"""Measure ``dumpdiff logs`` on a long run: 128 ranks print 5000 steps each, against one log.

    python benchmarks/logs.py [--steps 5000] [--ranks 128] [--own]

``--own``: every rank prints a different loss, as in pure data parallelism, so that all logs must be
read. The reference is a Megatron-LM log. The logs have the format of both frameworks; the numbers
are invented.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_STEP = (
    "2026-11-21 01:44:41,849 - "
    "mindformers/path/output/log[mindformers/core/callback/callback.py:544] - INFO - "
    "{{ Epoch:[  1/  1], step:[{step:5d}/{steps:5d}], loss: {loss:.6f}, per_step_time: 1120ms, "
    "lr: {lr}, "
    "overflow cond: False, loss_scale: 1.0, global_norm: [{norm:.6f}], train_throughput_per_npu: "
    "0.000T\n"
    "2026-11-21 01:44:41,850 - "
    "mindformers/path/output/log[mindformers/core/callback/callback.py:560] - INFO -    "
    "6.2% |███                                               | 1.78514 samples/s/p  0:00:16 }}\n"
)
_ITERATION = (
    " [2026-11-21 01:51:13] iteration {step:8d}/{steps:8d} | consumed samples: {samples:12d} | "
    "elapsed time per "
    "iteration (ms): 29.8 | learning rate: {lr:.6E} | global batch size:     4 | lm loss: "
    "{loss:.6E} | loss scale: 1.0 "
    "| grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 "
    "|\n"
)


def write_logs(folder: Path, steps: int, ranks: int, own_losses: bool) -> tuple[Path, Path]:
    """Write the logs of both sides; return the target's folder and the reference's file."""
    random = np.random.default_rng(0)
    loss = 2 + 6 * np.exp(-np.arange(steps) / 800) + random.normal(0, 0.02, steps)
    norm = 1 + random.random(steps)
    target, reference = folder / "msrun_log", folder / "megatron.log"
    target.mkdir()
    for rank in range(ranks):
        rank_loss = loss + (
            random.normal(0, 1e-3, steps) if own_losses else random.normal(0, 1e-4, 1)
        )
        rank_loss = rank_loss if own_losses else loss + 1e-5
        lines = (
            _STEP.format(step=i + 1, steps=steps, loss=rank_loss[i], lr=1e-05, norm=norm[i])
            for i in range(steps)
        )
        (target / f"worker_{rank}.log").write_text("".join(lines))
    reference.write_text(
        "".join(
            _ITERATION.format(
                step=i + 1, steps=steps, samples=4 * i + 4, lr=1e-5, loss=loss[i], norm=norm[i]
            )
            for i in range(steps)
        )
    )
    return target, reference


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--own", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target, reference = write_logs(Path(folder), options.steps, options.ranks, options.own)
        size = sum(file.stat().st_size for file in target.iterdir())
        command = [
            str(Path(sys.executable).parent / "dumpdiff"),
            "logs",
            str(target),
            str(reference),
            "-q",
        ]
        begin = time.perf_counter()
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
    print(completed.stdout.strip() or completed.stderr.strip())
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{options.ranks} ranks x {options.steps} steps, {size / 1e6:.0f} MB: {seconds:.2f} s",
        end=", ",
    )
    print(f"{usage.ru_utime + usage.ru_stime:.2f} s of one core, exit code {completed.returncode}")


if __name__ == "__main__":
    main()
