"""Scalings: ops that multiply a value by one number, with that number as the dump holds it.

A factor between two runs is a fact about two values. Which number each program uses is another
one: a side can multiply by 0.0625, divide by 16, scale its queries and its keys, or pass a scale to
a fused operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Relative distance within which the recorded numbers explain a fitted factor. A dump's statistics
#: have six digits; bfloat16 rounds a scale by up to 2e-3, and the two sides may round differently.
_MAX_RATIO_DISTANCE = 5e-3


@dataclass(frozen=True)
class Scaling:
    """One op that multiplies a value by a recorded number."""

    op: str  #: its name in the dump, without the path of a graph
    action: str  #: what it does with the number as recorded: "divides by 4"
    factor: float  #: what the value is multiplied by: 0.25
    #: the value is the input of a softmax: the factor scales scores, not the output
    in_softmax: bool = False


def select_scalings(scalings: Sequence[Scaling], in_softmax: bool = False) -> list[Scaling]:
    """Return the scalings of the value itself, or those of the scores that it is computed from."""
    return [scaling for scaling in scalings if scaling.in_softmax == in_softmax]


def describe_scalings(target: Sequence[Scaling], reference: Sequence[Scaling], ratio: float) -> str:
    """Return what both dumps hold, '' if their numbers do not explain the factor ``ratio``.

    ``ratio`` is the target's value divided by the reference's. Example: "the target multiplies by
    0.0625 (Mul-op3), the reference divides by 4 (Tensor.div.0.forward): 0.0625 against 0.25".
    """
    if not target and not reference:
        return ""
    factors = [_multiply_factors(scalings) for scalings in (target, reference)]
    if not abs(factors[0] - ratio * factors[1]) <= _MAX_RATIO_DISTANCE * abs(factors[0]):
        return ""
    target_text, reference_text = _describe_side(target), _describe_side(reference)
    factor_text = f"{factors[0]:.6g} against {factors[1]:.6g}"
    return f"the target {target_text}, the reference {reference_text}: {factor_text}"


def _multiply_factors(scalings: Sequence[Scaling]) -> float:
    return float(np.prod([scaling.factor for scaling in scalings]))


def _describe_side(scalings: Sequence[Scaling]) -> str:
    if not scalings:
        return "multiplies by no recorded number"
    return " and ".join(f"{scaling.action} ({scaling.op})" for scaling in scalings)
