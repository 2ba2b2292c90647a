"""Gradients that are zero in some places, or limited to a range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .fault_cases import explain_fault_case, make_fault_case, make_operand

RNG = np.random.default_rng(13)
GRADIENT = RNG.standard_normal((12, 8))
STEPS = RNG.standard_normal((2, 6, 8))


def explain(faulty, faithful, operands=None, **fields):
    """Return (cause, sentence without place and residual)."""
    case = make_fault_case(faulty, faithful, operands or {}, phase="backward", scope="embedding")
    causes = explain_fault_case(replace(case, **fields))
    if not causes:
        return "", ""
    text = causes[0].text.removeprefix("embedding behaves as ").partition("; residual")[0]
    return causes[0].name, text


def test_padding_row_of_an_embedding():
    faulty = GRADIENT.copy()
    faulty[0] = 0
    assert explain(faulty, GRADIENT) == (
        "gradient-stopped",
        "no gradient in 1 of 12 rows: 0; the reference has a gradient there",
    )


def test_gradient_that_stops_at_a_step():
    faulty = STEPS.copy()
    faulty[:, :4] = 0
    assert explain(faulty, STEPS) == (
        "gradient-stopped",
        "no gradient in 4 of 6 places of axis 1: 0, 1, 2, 3; the reference has a gradient there",
    )


def test_other_rows_differ_too():
    faulty = 1.01 * GRADIENT
    faulty[0] = 0
    assert explain(faulty, GRADIENT) == ("", "")


def test_gradient_where_a_value_is_clipped():
    x = RNG.standard_normal((12, 8))
    faulty = np.where(np.abs(x) < 1, GRADIENT, 0.0)
    low, high = x[np.abs(x) < 1].min(), x[np.abs(x) < 1].max()
    operands = (make_operand("quantizer.mul", x),)
    assert explain(faulty, GRADIENT, find_other_values=lambda _: operands) == (
        "straight-through",
        f"no gradient where quantizer.mul is clipped (below {low:.4g} and above {high:.4g}); the "
        "reference passes the gradient straight through",
    )


def test_addend_also_where_a_value_is_clipped():
    x, addend = RNG.standard_normal((2, 12, 8))
    is_clipped = np.abs(x) > 1
    faithful = GRADIENT + np.where(is_clipped, 0.0, addend)
    low, high = x[~is_clipped].min(), x[~is_clipped].max()
    operands = (make_operand("net.image", x),)
    assert explain(
        GRADIENT + addend, faithful, {"features": addend}, find_other_values=lambda _: operands
    ) == (
        "straight-through",
        f"the gradient of features also where net.image is clipped (below {low:.4g} and above "
        f"{high:.4g}); the reference has none there",
    )


def test_addend_missing_behind_an_activation():
    """The skip connection around a block whose result goes through relu has no gradient."""
    x, addend = RNG.standard_normal((2, 12, 8))
    result = np.maximum(x, 0.0)
    faithful, faulty = (np.where(result > 0, g, 0.0) for g in (GRADIENT + addend, GRADIENT))
    operands = (make_operand("block.relu", result),)
    assert explain(faulty, faithful, {"skip": addend}, find_other_values=lambda _: operands) == (
        "gradient-stopped",
        "the gradient of skip missing in the gradient of block.relu; the reference adds it",
    )


def test_random_elements_without_a_gradient_are_not_clipped_values():
    faulty = np.where(RNG.random((12, 8)) < 0.7, GRADIENT, 0.0)
    operands = (make_operand("quantizer.mul", RNG.standard_normal((12, 8))),)
    assert explain(faulty, GRADIENT, find_other_values=lambda _: operands)[0] != "straight-through"


def test_elements_are_clipped():
    assert explain(np.clip(GRADIENT, -0.5, 0.5), GRADIENT) == (
        "clip",
        "every element clipped to 0.5; the reference does not clip elements",
    )


def test_branch_is_counted_twice():
    a, b = RNG.standard_normal((2, 6, 8))
    assert explain(a + 2 * b, a + b, {"first": a, "second": b})[0] == "gradient-scaled"
