"""Gradients of values that only one side uses for something else, too."""

import numpy as np
import pytest
from traces import record_calls, start_matching

from dumpdiff.alignment.gradient_shares import separate_shares
from dumpdiff.graph import Gradients

POINT, CENTER, OFFSET, MOVED, SHIFTED, GRADIENT = np.random.default_rng(4).standard_normal(
    (6, 4, 5)
)
DIRECTION = np.sign(OFFSET)


def record_points(shares_offset: bool, scale: float):
    """An offset gives a direction, and is moved, or the point is; then the offset's gradient."""
    moved = (
        [("Exp", (OFFSET,), MOVED)]
        if shares_offset
        else [("Exp", (POINT,), SHIFTED), ("Mul", (SHIFTED, CENTER), MOVED)]
    )
    return record_calls(
        ("Sub", (POINT, CENTER), OFFSET),
        ("Sign", (OFFSET,), DIRECTION),
        *moved,
        ("Tile", (), GRADIENT * scale),
    )


@pytest.fixture
def separate():
    """Return whether the gradients of two offsets stay partners."""

    def stay(shares_offset: tuple[bool, bool], scale: float) -> bool:
        matching = start_matching(
            record_points(shares_offset[0], 1.0), record_points(shares_offset[1], scale)
        )
        values = []
        for flow in (matching.target, matching.reference):
            (offset,), (direction,), *_, (moved,), (gradient,) = list(flow.writes)
            values.append((offset, direction, moved, gradient))
        for t, r in zip(*values, strict=True):
            matching.pair(t, r, "gradient" if t == values[0][-1] else "value", 0.75)
        gradients = [Gradients({offset: gradient}, {}) for offset, *_, gradient in values]
        separate_shares(matching, *gradients)
        return bool(matching.classes_t[values[0][-1]] >= 0)

    return stay


@pytest.mark.parametrize(("shares_offset", "scale", "expected"), [
    ((True, False), 0.5, False),
    ((False, True), 0.5, False),
    ((True, True), 0.5, True),  # both add up the same: one of them is wrong
    ((True, False), 1 + 1e-5, True),  # no share: noise
])  # fmt: skip
def test_a_gradient_is_no_partner_of_its_share(separate, shares_offset, scale, expected):
    assert separate(shares_offset, scale) == expected
