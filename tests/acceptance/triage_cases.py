"""The ten pairs of real trainings that are triaged: one for each fault of fixtures/training.py, and one without."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from training import FAULTS

#: The fault in the schedule shows after a quarter of the steps; the others need no more than these.
STEPS = {name: 24 if name == "schedule" else 4 for name in FAULTS}


def train_pair(triage_run: Callable[..., Path], case: str) -> tuple[Path, Path]:
    """Target (MindSpore) and reference (PyTorch) of a case; the fault is on one side, the other is clean."""
    side = FAULTS[case].side
    target, reference = (
        case if side == framework else "none" for framework in ("mindspore", "pytorch")
    )
    return triage_run("mindspore", target, STEPS[case]), triage_run(
        "pytorch", reference, STEPS[case]
    )


def read_losses(run: Path) -> list[float]:
    """The loss of every step, as the log has it."""
    return [
        float(found)
        for found in re.findall(r"loss:(?:\[| )([\d.E+-]+)", (run / "train.log").read_text())
    ]


def read_global_norms(run: Path) -> list[float]:
    """The norm of all gradients before clipping at every step, as the log has it."""
    found = re.findall(r"(?:global_|grad )norm: \[?([\d.]+)", (run / "train.log").read_text())
    return [float(norm) for norm in found]


def read_local_norms(run: Path) -> list[float]:
    """The squares that were printed at step 1, in the order in which they were printed."""
    printed = (run / "local_norms.log").read_text().partition("local")[2].partition("[")[2]
    return [float(found) for found in re.findall(r"\d+\.\d*(?:e-?\d+)?", printed)]
