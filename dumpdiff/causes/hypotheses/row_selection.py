"""Rows picked by number: other rows, or the right ones in another order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..hypothesis import Candidate, Hypothesis
from ..situation import Situation


def other_rows(s: Situation) -> Iterator[Candidate]:
    """r = table[ids], t = table[ids + k]; with ids 0, 1, 2, ... these are positions."""
    if not s.forward or s.plain.ndim < 2:
        return
    numbers = [o.array for o in s.operands if o.array.dtype.kind in "iu" and o.shape]
    for table in s.matrices():
        if table.shape[-1] != s.plain.shape[-1]:
            continue
        count = s.plain.size // table.shape[-1]
        for ids in (*numbers, np.arange(count)):
            if ids.size != count or ids.min() < 0 or ids.max() >= table.shape[0]:
                continue
            plain = table.array[ids.reshape(-1)].reshape(s.plain.shape)
            if not s.fits(plain):
                continue
            steps = bool(np.array_equal(np.unique(np.diff(ids.reshape(-1)[: ids.shape[-1]])), [1]))
            for shift in (1, -1, 2, -2):
                moved = (ids.reshape(-1) + shift) % table.shape[0]
                said, cause = (
                    (f"positions moved by {shift}", "position-offset")
                    if steps
                    else (f"rows shifted by {shift}", "row-shift")
                )
                made = table.array[moved].reshape(s.plain.shape)
                yield Candidate(made, said, "", {"shift": float(shift)}, plain, cause)


def positions(s: Situation) -> Iterator[Candidate]:
    """A table in use whose rows are those of the other side from another one on; ends are not judged."""
    if (
        not s.discrete
        or s.plain.size < 3
        or not (s.given or s.finding.kind in ("introduced", "region"))
    ):
        return
    step = float(s.departing.flat[0] - s.plain.flat[0])
    counting = np.array_equal(
        np.unique(np.diff(s.plain.reshape(-1, s.plain.shape[-1]), axis=-1)), [1.0]
    )
    if step and counting:
        yield Candidate(
            s.plain + step,
            f"positions moved by {step:g}",
            "",
            {"offset": step},
            s.plain,
            "position-offset",
        )


HYPOTHESES = (Hypothesis("row-shift", other_rows), Hypothesis("position-offset", positions))
