"""Gradients along several paths, and weights that changed places, on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dumpdiff
from dumpdiff.causes.region import Step, StepInput
from dumpdiff.causes.step_derivatives import find_derivative
from dumpdiff.model.arrays import AnyArray


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "cause", "sentence"),
    [
        ("detached", "gradient-stopped", "flows back through Functional.linear.4.forward (matmul)"),
        ("halved", "gradient-scaled", "Module.gate.Linear.backward.0 times 0.5 in a sum"),
        ("straight", "straight-through", "straight through Torch.tanh.0.forward (tanh)"),
        ("offset", "constant-offset", "without the number of Tensor.__radd__.0.forward (add 1)"),
        ("exchanged", "weight-swapped", "norms.1.weight in its place"),
        ("interleaved", "heads-permuted", "cut to (size, heads), not to (heads, size)"),
        ("unweighted", "loss-weight", "all weights of the loss 1"),
        ("halves", "gate-up-swapped", "gate and up swapped"),
    ],
)
def test_the_difference_is_named(
    dump: Callable[[str], Path], form: str, cause: str, sentence: str, is_mirrored: bool
) -> None:
    folder = dump("pt_paths")
    paths = [folder / f"paths_{form}", folder / "paths_plain"]
    result = dumpdiff.align(*(reversed(paths) if is_mirrored else paths))
    first_cause = result.findings[0].causes[0]
    assert first_cause.name == cause
    assert sentence in first_cause.text
    assert first_cause.residual < 1e-6
    is_symmetric = form in ("exchanged", "interleaved", "halves")
    assert is_symmetric or ("of the reference behaves" in first_cause.text) == is_mirrored


def test_a_place_with_exchanged_weights_begins_where_they_are_read(
    dump: Callable[[str], Path],
) -> None:
    folder = dump("pt_paths")
    result = dumpdiff.align(folder / "paths_exchanged", folder / "paths_plain")
    assert result.findings[0].target_ops == (
        "Tensor.__radd__.0.forward",
        "Tensor.__mul__.1.forward",
    )


def test_exchanged_halves_of_a_layer_begin_where_the_other_side_has_two_layers(
    dump: Callable[[str], Path],
) -> None:
    folder = dump("pt_paths")
    sound, faulty, plain = (folder / f"paths_{form}" for form in ("joined", "halves", "plain"))
    assert dumpdiff.align(sound, plain).verdict == "aligned"
    finding = dumpdiff.align(faulty, plain).findings[0]
    assert finding.target_ops[0] == "Functional.linear.3.forward"
    assert finding.reference_ops[:2] == (
        "Functional.linear.3.forward",
        "Functional.linear.4.forward",
    )


def make_step(kind: str, *arrays: AnyArray, interpretation: str = "") -> Step:
    """Return a step with the output that it computes from arrays of four rows and columns."""
    inputs = tuple(StepInput(-1, array, "x", False, False) for array in arrays)
    shape = {"sum": (4,), "mean": (4,), "smooth_l1_loss": ()}.get(kind, (4, 4))
    step = Step(kind, kind, inputs, {}, 0, np.zeros(shape))
    for name, output in step.interpret(list(arrays)):
        if interpretation in ("", name):
            return replace(step, interpretation=name, output=output)
    raise AssertionError(kind)


@given(
    st.sampled_from(
        [
            ("tanh", 1, ""),
            ("gelu", 1, ""),
            ("mul", 2, ""),
            ("div", 2, ""),
            ("softmax", 1, "axis 1"),
            ("softmax", 1, "axis 0"),
            ("layer_norm", 1, ""),
            ("matmul", 2, ""),
            ("matmul", 2, "b transposed"),
            ("matmul", 2, "a transposed"),
            ("sum", 1, ""),
            ("mean", 1, ""),
            ("smooth_l1_loss", 2, ""),
        ]
    ),
    st.integers(0, 9),
)
def test_what_flows_back_is_the_change_of_the_sum(form: tuple[str, int, str], seed: int) -> None:
    """For small d, sum(g f(x + d)) - sum(g f(x)) is sum(d f'(x)^T g)."""
    kind, n_inputs, interpretation = form
    random = np.random.default_rng(seed)
    arrays = [random.uniform(0.5, 2, (4, 4)) for _ in range(n_inputs)]
    step = make_step(kind, *arrays, interpretation=interpretation)
    gradient = random.standard_normal(step.output.shape)
    for position in range(n_inputs):
        derivative = find_derivative(step, position)
        assert derivative is not None
        change = 1e-6 * random.standard_normal((4, 4))
        moved = [array + change * (place == position) for place, array in enumerate(arrays)]
        output = step.compute(moved)
        assert output is not None
        expected = float(np.sum(gradient * (output - step.output)))
        assert float(np.sum(derivative(gradient) * change)) == pytest.approx(
            expected, rel=1e-3, abs=1e-11
        )
