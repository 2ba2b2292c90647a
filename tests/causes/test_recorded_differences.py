"""What only one side's records have: a number, a sign, an input or a step, on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.causes.element_places import find_order, find_window
from dumpdiff.causes.hypotheses.composites.applied_functions import describe_function
from dumpdiff.causes.region import StepInput

from .fault_cases import explain_fault_case, make_fault_case


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "cause", "sentence"),
    [
        ("sign", "constant-factor", "Tensor.__rmul__.5.forward subtracted in"),
        ("weights", "loss-weight", "0.7 in Tensor.__rmul__.0.forward and 0.3 in"),
        ("factor", "constant-factor", "a factor of 0.1 (Tensor.__mul__.4.forward (mul))"),
        ("target", "loss-target", "the loss against an input"),
        ("unsoftened", "activation-kind", "no activation in place of softplus"),
        ("source", "input-source", "(mul) of Torch.tanh.0.forward"),
    ],
)
def test_the_difference_is_named(
    dump: Callable[[str], Path], form: str, cause: str, sentence: str, is_mirrored: bool
) -> None:
    folder = dump("pt_terms")
    paths = [folder / f"terms_{form}", folder / "terms_plain"]
    result = dumpdiff.align(*(reversed(paths) if is_mirrored else paths))
    first_cause = result.findings[0].causes[0]
    assert first_cause.name == cause
    if not is_mirrored:
        assert sentence in first_cause.text
    assert first_cause.residual < 1e-6


def test_an_index_cuts_a_window_of_one_place_and_leaves_its_axis_out() -> None:
    """Zeros of relu are not recognized by value."""
    source = np.maximum(np.random.default_rng(3).standard_normal((4, 6, 2)), 0)
    places = find_window(source, source[..., 1])
    assert places is not None
    assert np.array_equal(source.reshape(-1)[places].reshape(4, 6), source[..., 1])
    assert places[0] == 1


def test_heads_are_cut_from_rows_that_repeat() -> None:
    """Sequences begin with the same token, so the first rows of a projection are equal."""
    rows = np.random.default_rng(3).standard_normal((4, 5, 12))
    rows[:, 0] = rows[0, 0]
    heads = rows.reshape(4, 5, 3, 4).transpose(0, 2, 1, 3)
    is_found, order = find_order(rows, heads)
    assert is_found
    assert order is not None
    assert np.array_equal(rows.reshape(-1)[order].reshape(heads.shape), heads)


@pytest.mark.parametrize(
    ("low", "high", "limits"),
    [(-2, 1, "[-2, 1]"), (-1, np.inf, "at least -1"), (-np.inf, 1, "at most 1")],
)
def test_a_clamp_that_no_op_records_is_named(low: float, high: float, limits: str) -> None:
    x = np.random.default_rng(3).standard_normal(640)
    clamped = StepInput(1, np.clip(x, low, high), "an input", False, False)
    assert describe_function(clamped, ("x", x)) == (
        "clamp", "x without a clamp", f"clamps it to {limits}"
    )  # fmt: skip
    plain = StepInput(1, x, "x", False, False)
    assert describe_function(plain, ("y", np.clip(x, low, high))) == (
        "clamp", f"x clamped to {limits}", "does not clamp it"
    )  # fmt: skip


def test_positions_of_an_image_are_read_by_its_rows_and_columns() -> None:
    def make_table(factor: float) -> np.ndarray:
        rows, columns = np.divmod(np.arange(25), 5)
        frequencies = factor * 1e4 ** (-np.arange(4) / 4)
        angles = [np.outer(places, frequencies) for places in (rows, columns)]
        return np.concatenate([part(angle) for angle in angles for part in (np.sin, np.cos)], 1)

    case = make_fault_case(make_table(0.5), make_table(1.0), {})
    cause = explain_fault_case(case)[0]
    assert cause.name == "rope-scaling"
    assert "positions 0.5 times the reference's" in cause.text
