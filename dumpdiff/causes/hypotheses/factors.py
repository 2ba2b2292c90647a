"""One number times all of it: a scale, a doubled loss, a clipped or averaged gradient; and nothing at all, zeros."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.trace import BACKWARD, FORWARD, OPTIMIZER
from ..parameter_fit import fit_factor
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase, find_masked

#: Ops beyond which a factor is none of the attention scores any more.
_LARGEST_WHOLE = 64
#: Logarithms of what the corrections of Adam's two moments multiply by in the first step, with the usual betas.
_MOMENTS = np.log([0.1, 10.0, 1e-3, 1e3, 1e-3**0.5, 1e3**0.5, 0.9, 0.999])
_SAME = 1e-3
_SCORES = {"softmax", "scaled_masked_softmax", "masked_fill", "exp"}


def scaled(s: FaultCase) -> Iterator[Candidate]:
    """t = c r, c solved for by least squares; masked elements take no part."""
    hidden = find_masked(s.faithful)
    if s.faithful.size < 1 or s.is_source:
        return
    c = fit_factor(np.where(hidden, 0, s.faithful), np.where(hidden, 0, s.faulty))
    if s.faithful.size == 1:  # any number is some factor of any other: only a whole one says something
        c = _whole(c, s.limit)
    if s.phase == OPTIMIZER and np.min(np.abs(np.log(abs(c) or 1) - _MOMENTS)) < _SAME:
        return  # the same moment in another form, corrected or not: nothing was clipped
    if np.isfinite(c) and c != 0:
        name = factor_name(s)
        what = (
            f"{_numbers_said(s, c)}" if name == "scale" else f"{c:.6g} times the {s.faithful_role}'s"
        )
        yield Candidate(
            np.where(hidden, s.faithful, c * s.faithful),
            what,
            parameters={"factor": c},
            unchanged=s.faithful,
            cause=name,
        )


def _whole(c: float, limit: float) -> float:
    """c if it, or its inverse, is a whole number; else NaN."""
    for sign, value in ((1, c), (-1, 1 / c if c else 0.0)):
        number = round(value)
        if 1 < abs(number) <= _LARGEST_WHOLE and abs(value - number) <= 4 * limit * abs(number):
            return float(number) ** sign
    return float("nan")


def _numbers_said(s: FaultCase, c: float) -> str:
    used = [n for n in s.numbers if 0 < abs(n) < 1e4]
    if len(used) == 1:
        return f"scale = {c * used[0]:.6g} where the {s.faithful_role} has {used[0]:.6g}"
    return f"scores times {c:.6g}"


def factor_name(s: FaultCase) -> str:
    """What a factor is called where it stands."""
    if s.phase == OPTIMIZER:
        return "clip"
    if s.is_near_loss or s.faithful.size == 1:
        return "constant-factor"
    if s.phase == BACKWARD:
        return "gradient-scaled"
    if s.consumer_kinds & _SCORES and "attention" in s.finding.scope:
        return "scale"
    return "residual-scale" if "add" in s.consumer_kinds and "matmul" not in s.consumer_kinds else "constant-factor"


def zeros(s: FaultCase) -> Iterator[Candidate]:
    """t = 0."""
    if s.faithful.dtype.kind == "f" and not s.finding.is_given and np.any(s.faithful):
        stopped = s.phase != FORWARD
        yield Candidate(
            np.zeros_like(s.faithful),
            "no gradient at all" if stopped else "all zeros",
            unchanged=s.faithful,
            cause="gradient-stopped" if stopped else "zeroed",
        )


HYPOTHESES = (Hypothesis("zeroed", zeros), Hypothesis("constant-factor", scaled))
