"""What a training log says, as columns: one row per training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..model.arrays import AnyArray

#: used: printed beside a step is the rate that this step used; next: that of the step after it.
RateOf = Literal["used", "next", "unknown"]


@dataclass(frozen=True)
class Curves:
    """One run. All arrays have one entry per step, in the order of the steps; NaN where nothing was printed."""

    path: str
    format: str  #: megatron, mindformers, trainer
    era: str  #: what tells this generation of the format apart, in words
    steps: AnyArray  #: int64, from 1, increasing
    loss: AnyArray  #: of the language model alone where the log tells it apart
    norm: AnyArray  #: global gradient norm before clipping
    rate: AnyArray  #: the learning rate that the step used, as far as the format says
    scale: AnyArray  #: loss scale
    skipped: AnyArray  #: bool: no update, as after an overflow
    overflow: AnyArray  #: bool: gradients were not finite
    nonfinite: AnyArray  #: bool: the loss or the norm was not finite
    total: AnyArray  #: loss with auxiliary losses, NaN where it is not told apart
    rate_of: RateOf = "used"
    loss_resolution: float = 0.0  #: half of the last printed decimal
    norm_resolution: float = 0.0
    interval: int = (
        1  #: steps from one line to the next; losses are means over them if ``averaged``
    )
    averaged: bool = False
    restarts: tuple[int, ...] = ()  #: first step of every process but the first
    others: Mapping[str, AnyArray] = field(
        default_factory=dict
    )  #: load balancing, MTP and other losses, by name
    notes: tuple[str, ...] = ()  #: what was put right, or is easily misread

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(slots=True)
class Record:
    """One printed step, before the records of a run are put in order; not frozen, since there are many."""

    step: int
    loss: float = np.nan
    norm: float = np.nan
    rate: float = np.nan
    scale: float = np.nan
    skipped: bool = False
    overflow: bool = False
    nonfinite: bool = False
    total: float = np.nan
    others: Mapping[str, float] = field(default_factory=dict)
    process: int = 0  #: of the processes that wrote into this log one after the other


def ordered(records: Sequence[Record]) -> tuple[list[Record], tuple[int, ...]]:
    """Records by step, and where a process began anew; what a restarted process repeats counts more."""
    restarts = tuple(b.step for a, b in pairwise(records) if b.process != a.process)
    by_step = {record.step: record for record in records}
    return [by_step[step] for step in sorted(by_step)], restarts


def columns(records: Sequence[Record]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """The arrays of :class:`Curves` by field, and those of other losses by name, from records in order."""
    names = dict.fromkeys(name for record in records for name in record.others)
    numbers = {
        name: np.array([getattr(record, name) for record in records], dtype=float)
        for name in ("loss", "norm", "rate", "scale", "total")
    }
    flags = {
        name: np.array([getattr(record, name) for record in records], dtype=bool)
        for name in ("skipped", "overflow", "nonfinite")
    }
    steps = np.array([record.step for record in records], dtype=np.int64)
    return {"steps": steps, **numbers, **flags}, {
        name: np.array([record.others.get(name, np.nan) for record in records], dtype=float)
        for name in names
    }


def interval(steps: AnyArray) -> int:
    """Steps from one line to the next, as most lines have it; 1 of a single line."""
    return int(np.median(np.diff(steps))) if len(steps) > 1 else 1
