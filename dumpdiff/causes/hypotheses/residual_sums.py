"""Sums of two branches: one of them scaled, taken elsewhere, or with elements dropped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ...model.trace import BACKWARD
from ..parameter_fit import fit_factor
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import ZERO, FaultCase

_FEWEST_DROPPED = 0.01  # share of elements
_CHANCE = 12.0  # standard deviations by which the share that was dropped may differ from p


def branches(s: FaultCase) -> Iterator[Candidate]:
    """r = a + b; t = a + c b, t = a alone, or t = d + b with another operand d."""
    if s.faithful.size < 2 or s.is_source:
        return
    inputs = [(o, o.array.reshape(s.faithful.shape)) for o in s.find_same_size_operands()][:12]
    for (_, a), (_, b) in combinations(inputs, 2):
        plain = a + b
        if not s.matches_faithful(plain):
            continue
        if s.phase == BACKWARD:
            for kept in (a, b):
                yield Candidate(
                    kept, "the gradient of one branch missing", "", {}, plain, "gradient-stopped"
                )
        for kept, changed in ((a, b), (b, a)):
            c = fit_factor(changed, s.faulty - kept)
            cause = "gradient-scaled" if s.phase == BACKWARD else "residual-scale"
            if np.isfinite(c) and abs(c) > 1e-6:
                yield Candidate(
                    kept + c * changed,
                    f"one branch of the sum times {c:.6g}",
                    "",
                    {"factor": c},
                    plain,
                    cause,
                )
            else:
                yield Candidate(
                    kept, "one branch of the sum left out", "", {}, plain, "residual-scale"
                )
            for o, other in inputs:
                if other is not kept and other is not changed:
                    yield Candidate(
                        kept + other,
                        f"the residual taken from {o.name}",
                        "",
                        {},
                        plain,
                        "residual-order",
                    )
        return


def dropped(s: FaultCase) -> Iterator[Candidate]:
    """Some elements zero, all others times 1 / (1 - p): of the value, or of one branch of a sum."""
    if not s.is_forward_value or s.faithful.size < 16:
        return
    bases = [ZERO, *(o.array.reshape(s.faithful.shape) for o in s.find_same_size_operands())][:8]
    for base in bases:
        ours, theirs = s.faulty - base, s.faithful - base
        size = float(np.abs(theirs).max())
        if size == 0:
            continue
        gone = (np.abs(ours) <= 1e-5 * size) & (np.abs(theirs) > 1e-4 * size)
        share = float(gone.mean())
        kept = np.where(gone, 0.0, theirs)
        rows = gone.reshape(-1, gone.shape[-1])
        whole_rows = bool(
            np.all(rows.all(axis=1) | ~rows.any(axis=1))
        )  # tokens that got nothing: no dropout
        if not _FEWEST_DROPPED <= share < 0.95 or not kept.any() or whole_rows:
            continue
        c = fit_factor(kept, ours)
        if np.isfinite(c) and abs(c * (1 - share) - 1) < _CHANCE / np.sqrt(ours.size):
            said = f"dropout of {share:.2g} of the elements, the rest times {c:.4g}"
            yield Candidate(
                base + c * kept, said, "", {"share": share, "factor": c}, s.faithful, "dropout"
            )


def dropped_before(s: FaultCase) -> Iterator[Candidate]:
    """A mask of zeros and 1 / (1 - p) that only the departing side has, on an input of the last op."""
    if s.call is None or not s.is_forward_value:
        return
    for o in s.faulty_operands:
        values = (
            np.unique(o.array)
            if o.array.dtype.kind == "f" and not o.agrees and o.array.size > 8
            else np.empty(0)
        )
        if len(values) != 2 or values[0] != 0 or values[1] < 1:
            continue
        share = float(np.mean(o.array == 0))
        for i, value in enumerate(s.call.inputs):
            if value.size != o.array.size:
                continue
            inputs = [*s.call.inputs]
            inputs[i] = value * o.array.reshape(value.shape)
            made = s.repeat_call(inputs)
            if made is not None:
                said = f"dropout of {share:.2g} of the elements, the rest times {values[1]:.4g}"
                yield Candidate(
                    made, said, "", {"share": share, "factor": float(values[1])}, s.faithful, "dropout"
                )


HYPOTHESES = (
    Hypothesis("residual-scale", branches),
    Hypothesis("dropout", dropped),
    Hypothesis("dropout", dropped_before),
)
