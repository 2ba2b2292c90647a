"""The contents of a training log as columns: one row per training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..model.arrays import AnyArray

#: Which step the learning rate printed with a step belongs to: used: this step; next: the step
#: after it.
RateOf = Literal["used", "next", "unknown"]


@dataclass(frozen=True)
class Curves:
    """One run. All arrays have one entry per step, in increasing order; NaN if not printed."""

    path: str
    format: str  #: megatron, mindformers, trainer
    format_variant: str  #: variant of the format, as text
    steps: AnyArray  #: int64, from 1, increasing
    loss: AnyArray  #: of the language model alone if the log prints it separately
    norm: AnyArray  #: global gradient norm before clipping
    rate: AnyArray  #: printed learning rate; ``rate_of`` says which step used it
    scale: AnyArray  #: loss scale
    skipped: AnyArray  #: bool: no update, for example after an overflow
    overflow: AnyArray  #: bool: gradients were not finite
    nonfinite: AnyArray  #: bool: the loss or the norm was not finite
    total_loss: AnyArray  #: loss with auxiliary losses, NaN if not printed separately
    rate_of: RateOf = "used"
    loss_resolution: float = 0.0  #: half of the last printed decimal
    norm_resolution: float = 0.0
    interval: int = (
        1  #: steps from one line to the next; losses are means over them if ``averaged``
    )
    averaged: bool = False
    restarts: tuple[int, ...] = ()  #: first step of every process but the first
    #: load balancing, MTP and other losses, by name
    other_losses: Mapping[str, AnyArray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  #: what was corrected, or is easily misread

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(slots=True)
class Record:
    """One printed step. Not frozen, because there are many and frozen ones are slower to create."""

    step: int
    loss: float = np.nan
    norm: float = np.nan
    rate: float = np.nan
    scale: float = np.nan
    skipped: bool = False
    overflow: bool = False
    nonfinite: bool = False
    total_loss: float = np.nan
    other_losses: Mapping[str, float] = field(default_factory=dict)
    n_restarts: int = 0  #: how often the run had been restarted in this log before this record


_FLOAT_COLUMNS = ("loss", "norm", "rate", "scale", "total_loss")
_FLAG_COLUMNS = ("skipped", "overflow", "nonfinite")


def order_records(records: Sequence[Record]) -> tuple[list[Record], tuple[int, ...]]:
    """Return the records sorted by step, and the first step of every process but the first.

    Of records of one step, the last is kept.
    """
    restarts = []
    for previous, record in pairwise(records):
        if record.n_restarts != previous.n_restarts:
            restarts.append(record.step)
    by_step = {record.step: record for record in records}
    ordered_records = sorted(by_step.values(), key=lambda record: record.step)
    return ordered_records, tuple(restarts)


def build_columns(records: Sequence[Record]) -> dict[str, Any]:
    """Return the arrays of :class:`Curves` by field, from records sorted by step."""
    columns: dict[str, Any] = {
        "steps": np.array([record.step for record in records], dtype=np.int64)
    }
    for name in _FLOAT_COLUMNS:
        columns[name] = np.array([getattr(record, name) for record in records], dtype=float)
    for name in _FLAG_COLUMNS:
        columns[name] = np.array([getattr(record, name) for record in records], dtype=bool)
    loss_names = dict.fromkeys(name for record in records for name in record.other_losses)
    other_losses = {}
    for name in loss_names:
        values = [record.other_losses.get(name, np.nan) for record in records]
        other_losses[name] = np.array(values, dtype=float)
    columns["other_losses"] = other_losses
    return columns


def estimate_interval(steps: AnyArray) -> int:
    """Return the median distance from one printed step to the next; 1 for a single line."""
    return int(np.median(np.diff(steps))) if len(steps) > 1 else 1
