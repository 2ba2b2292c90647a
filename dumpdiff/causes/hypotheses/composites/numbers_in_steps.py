"""Numbers that the ops of a region take as arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...region import Step

#: Kinds that compute with the numbers that they take; others take axes, sizes and flags.
_ARITHMETIC_KINDS = {"add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp"}
_DIGITS = 6


def list_numbers(step: Step) -> list[tuple[int, float]]:
    """Return (position, number) of the numbers that a step computes with, and took as arguments."""
    if step.kind not in _ARITHMETIC_KINDS:
        return []
    return [
        (position, float(item.array))
        for position, item in enumerate(step.inputs)
        if item.value < 0 and item.array.ndim == 0 and item.array.dtype.kind in "iuf"
    ]


def count_numbers(steps: Iterable[Step]) -> Counter[float]:
    """Return how often steps take each number, to six digits."""
    return Counter(write_number(value) for step in steps for _, value in list_numbers(step))


def write_number(value: float) -> float:
    """Return a number to six digits: two frameworks write 0.1 with other bits."""
    return float(f"{value:.{_DIGITS}g}")
