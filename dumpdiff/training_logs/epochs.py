"""Steps of a log that prints none: from its epochs, and from what it says of their length."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ..model.arrays import AnyArray
from .log_text import parse_number

_TOTAL_STEPS = re.compile(r"Total optimization steps\s*=\s*([\d,]+)")
_N_EPOCHS = re.compile(r"Num Epochs\s*=\s*([\d,.]+)")
_RESUMED = re.compile(r"[Cc]ontinuing training from global step\s+(\d{1,9})")
_EPOCH_DIGITS = 0.005  #: largest error of an epoch, which is printed with two decimals or more
_COUNTED = "the log does not number its steps: "


def number_steps(
    steps: Sequence[int | None], all_fields: Sequence[Mapping[str, str]], text: str
) -> tuple[list[int], list[str]]:
    """Return the number of each record, and notes on how it was found.

    ``steps`` are the printed numbers, None where there is none. Then the epoch of a record and the
    steps of an epoch, which the Trainer prints at the beginning, give its number. If they are not
    printed, records are counted, from the first of the run or from where it was resumed.
    """
    if None not in steps:
        return [step for step in steps if step is not None], []
    if any(step is not None for step in steps):
        counts = [count if step is None else step for count, step in enumerate(steps, 1)]
        return counts, [f"{_COUNTED}records were counted; use trainer_state.json"]
    resumed_at = [int(match[1]) for match in _RESUMED.finditer(text)]
    start = resumed_at[0] if resumed_at else 0
    epochs = np.array([parse_number(fields.get("epoch", "")) for fields in all_fields])
    n_records = len(epochs)
    is_usable = n_records > 1 and np.isfinite(epochs).all() and bool((np.diff(epochs) >= 0).all())
    if not is_usable or epochs[-1] == epochs[0]:
        note = f"{_COUNTED}records were counted; use trainer_state.json"
        return list(range(start + 1, start + n_records + 1)), [note]
    epoch_length = _find_epoch_length(text)
    if epoch_length:
        note = f"{_COUNTED}they follow from the epochs, of {epoch_length:g} steps each"
        return _number_by_length(epochs, epoch_length, start), [note]
    return _number_by_records(epochs, start)


def _find_epoch_length(text: str) -> float:
    """Return the steps of an epoch that the Trainer prints at the beginning, 0 if it does not."""
    totals, counts = _TOTAL_STEPS.findall(text), _N_EPOCHS.findall(text)
    if not totals or not counts:
        return 0.0
    n_epochs = parse_number(counts[0].replace(",", ""))
    n_steps = parse_number(totals[0].replace(",", ""))
    return n_steps / n_epochs if n_epochs > 0 else 0.0


def _number_by_length(epochs: AnyArray, epoch_length: float, start: int) -> list[int]:
    """Return epoch x length, at equal distances if the rounding of the epochs allows that."""
    estimates = epochs * epoch_length
    interval = max(1, round(float((estimates[-1] - estimates[0]) / (len(epochs) - 1))))
    first = start + interval if start else max(1, round(float(estimates[0]) / interval)) * interval
    regular = first + interval * np.arange(len(epochs))
    if np.abs(regular - estimates).max() <= _EPOCH_DIGITS * epoch_length + 1:
        return [int(step) for step in regular]
    return [max(1, round(float(estimate))) for estimate in estimates]


def _number_by_records(epochs: AnyArray, start: int) -> tuple[list[int], list[str]]:
    """Count records; the first is as many records after the beginning as its epoch says."""
    interval = float((epochs[-1] - epochs[0]) / (len(epochs) - 1))
    first = max(1, round(float(epochs[0]) / interval))
    error = first * 2 * _EPOCH_DIGITS / float(epochs[-1] - epochs[0]) + _EPOCH_DIGITS / interval
    note = f"{_COUNTED}records were counted; use trainer_state.json"
    if start:
        first = start + 1
    elif first > 1 and error > 0.5:
        note = (
            f"{_COUNTED}it begins at epoch {epochs[0]:g}, about {first} records after the start;"
            " use trainer_state.json"
        )
    elif first > 1:
        note = (
            f"{_COUNTED}it begins at epoch {epochs[0]:g}, and its records are counted from {first}"
        )
    return list(range(first, first + len(epochs))), [note]
