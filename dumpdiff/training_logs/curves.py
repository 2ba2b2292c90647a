"""The contents of a training log as columns: one row per training step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from ..model.arrays import AnyArray
from .log_text import estimate_resolution, is_nonfinite, parse_number

#: Which step the learning rate printed with a step belongs to: used: this step; next: the step
#: after it.
RateOf = Literal["used", "next", "unknown"]


@dataclass(frozen=True)
class Curves:
    """One run. All arrays have one entry per step, in increasing order; NaN if not printed."""

    path: str
    format: str  #: megatron, mindformers, trainer, nemo, torchtitan, verl, tensorboard, table
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
#: Whole runs one after the other go back to an earlier step once each. Processes that share a log
#: do so at every step or every few: at this share of the steps at least.
_DESCENT_SHARE = 0.25


def order_records(
    records: Sequence[Record],
) -> tuple[list[Record], tuple[int, ...], tuple[str, ...]]:
    """Return the records sorted by step, the first step of every process but the first, and notes.

    Of records of one step, the last is kept: a restarted run prints a step again. If most steps are
    printed several times with few restarts between them, several processes print into one log: then
    equal records are one, and losses of one step are averaged.
    """
    by_step: dict[int, list[Record]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    steps = sorted(by_step)
    n_copies = int(np.median([len(by_step[step]) for step in steps])) if steps else 1
    if n_copies > 1 and _are_interleaved(records, n_copies):
        note = f"every step is printed {n_copies} times, by several processes: each counts once"
        if any(_have_other_losses(by_step[step]) for step in steps):
            note += ", with the mean of their losses"
        merged_records = [_merge_copies(by_step[step]) for step in steps]
        return merged_records, (), (note,)
    restarts = [
        record.step
        for previous, record in pairwise(records)
        if record.n_restarts != previous.n_restarts
    ]
    return [by_step[step][-1] for step in steps], tuple(restarts), ()


def _are_interleaved(records: Sequence[Record], n_copies: int) -> bool:
    """Return whether copies of a step are near each other, and not one whole run after another."""
    n_descents = sum(record.step <= previous.step for previous, record in pairwise(records))
    n_steps = len(records) / n_copies
    return n_descents > n_copies - 1 and n_descents >= _DESCENT_SHARE * n_steps


def _have_other_losses(copies: Sequence[Record]) -> bool:
    losses = {copy.loss for copy in copies if math.isfinite(copy.loss)}
    return len(losses) > 1


def _merge_copies(copies: Sequence[Record]) -> Record:
    """Return the record of one step that several processes print."""
    losses = [copy.loss for copy in copies if math.isfinite(copy.loss)]
    if not _have_other_losses(copies):
        return copies[-1]
    return replace(copies[-1], loss=float(np.mean(losses)), n_restarts=0)


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


class PrintedStep(NamedTuple):
    """What a log prints of one step, as text; '' if it is not printed."""

    step: int
    loss: str
    norm: str = ""
    rate: str = ""


def build_curves(
    printed_steps: Sequence[PrintedStep],
    path: str,
    format_name: str,
    format_variant: str,
    *,
    rate_of: RateOf = "unknown",
    notes: Sequence[str] = (),
) -> Curves:
    """Return the run in steps that are given in the order in which they were printed.

    Losses are those of single steps, also if not every step is printed.
    """
    records: list[Record] = []
    n_restarts = 0
    for step, loss, norm, rate in printed_steps:
        if records and step <= records[-1].step:
            n_restarts += 1
        records.append(
            Record(
                step=step,
                loss=parse_number(loss),
                norm=parse_number(norm),
                rate=parse_number(rate),
                nonfinite=is_nonfinite(loss) or is_nonfinite(norm),
                n_restarts=n_restarts,
            )
        )
    ordered_records, restarts, repeat_notes = order_records(records)
    columns = build_columns(ordered_records)
    return Curves(
        path=path,
        format=format_name,
        format_variant=format_variant,
        rate_of=rate_of,
        loss_resolution=estimate_resolution(printed.loss for printed in printed_steps),
        norm_resolution=estimate_resolution(printed.norm for printed in printed_steps),
        interval=estimate_interval(columns["steps"]),
        restarts=restarts,
        notes=(*notes, *repeat_notes),
        **columns,
    )
