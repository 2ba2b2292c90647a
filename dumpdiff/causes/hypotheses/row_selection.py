"""Rows picked by number: other rows, or the right ones in another order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase


def other_rows(s: FaultCase) -> Iterator[Candidate]:
    """r = table[ids], t = table[ids + k]; with ids 0, 1, 2, ... these are positions."""
    if not s.is_forward_value or s.faithful.ndim < 2:
        return
    numbers = [o.array for o in s.operands if o.array.dtype.kind in "iu" and o.shape]
    for table in s.find_matrix_operands():
        if table.shape[-1] != s.faithful.shape[-1]:
            continue
        count = s.faithful.size // table.shape[-1]
        for ids in (*numbers, np.arange(count)):
            if ids.size != count or ids.min() < 0 or ids.max() >= table.shape[0]:
                continue
            plain = table.array[ids.reshape(-1)].reshape(s.faithful.shape)
            if not s.matches_faithful(plain):
                continue
            steps = bool(np.array_equal(np.unique(np.diff(ids.reshape(-1)[: ids.shape[-1]])), [1]))
            for shift in (1, -1, 2, -2):
                moved = (ids.reshape(-1) + shift) % table.shape[0]
                said, cause = (
                    (f"positions moved by {shift}", "position-offset")
                    if steps
                    else (f"rows shifted by {shift}", "row-shift")
                )
                made = table.array[moved].reshape(s.faithful.shape)
                yield Candidate(made, said, "", {"shift": float(shift)}, plain, cause)


def positions(s: FaultCase) -> Iterator[Candidate]:
    """A table in use whose rows are those of the other side from another one on; ends are not judged."""
    if (
        not s.is_discrete
        or s.faithful.size < 3
        or not (s.is_source or s.finding.kind in ("introduced", "region"))
    ):
        return
    step = float(s.faulty.flat[0] - s.faithful.flat[0])
    counting = np.array_equal(
        np.unique(np.diff(s.faithful.reshape(-1, s.faithful.shape[-1]), axis=-1)), [1.0]
    )
    if step and counting:
        yield Candidate(
            s.faithful + step,
            f"positions moved by {step:g}",
            "",
            {"offset": step},
            s.faithful,
            "position-offset",
        )


HYPOTHESES = (Hypothesis("row-shift", other_rows), Hypothesis("position-offset", positions))
