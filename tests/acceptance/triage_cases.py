"""Ten pairs of real trainings: one for each of FAULTS in fixtures/training_faults.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from training_faults import FAULTS

#: The fault in the schedule shows after a quarter of the steps; the others need no more than these.
STEPS = {name: 24 if name == "schedule" else 4 for name in FAULTS}


def train_pair(triage_run: Callable[..., Path], case: str) -> tuple[Path, Path]:
    """Train and return target (MindSpore) and reference (PyTorch); one side has the fault."""
    side = FAULTS[case].side
    target_fault = case if side == "mindspore" else "none"
    reference_fault = case if side == "pytorch" else "none"
    target = triage_run("mindspore", target_fault, STEPS[case])
    reference = triage_run("pytorch", reference_fault, STEPS[case])
    return target, reference


def read_losses(run: Path) -> list[float]:
    """Return the loss of every step in the log."""
    losses = re.findall(r"loss:(?:\[| )([\d.E+-]+)", (run / "train.log").read_text())
    return [float(loss) for loss in losses]


def read_global_norms(run: Path) -> list[float]:
    """Return the norm of all gradients before clipping, for every step in the log."""
    norms = re.findall(r"(?:global_|grad )norm: \[?([\d.]+)", (run / "train.log").read_text())
    return [float(norm) for norm in norms]


def read_local_norms(run: Path) -> list[float]:
    """Return the squares that were printed at step 1, in their order."""
    printed = (run / "local_norms.log").read_text().partition("local")[2].partition("[")[2]
    return [float(square) for square in re.findall(r"\d+\.\d*(?:e-?\d+)?", printed)]
