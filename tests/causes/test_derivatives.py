"""The derivative of an activation at another number than its input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.model.arrays import AnyArray

from .fault_cases import explain_fault_case, make_fault_case

RNG = np.random.default_rng(23)
X, GRADIENT = RNG.standard_normal((2, 6, 8))


def explain(kind: str, faulty: AnyArray, faithful: AnyArray) -> tuple[str, str]:
    """Return (cause, sentence without place and residual)."""
    operands = {"gradient": GRADIENT, "x": X}
    case = make_fault_case(faulty, faithful, operands, phase="backward", scope="block")
    causes = explain_fault_case(replace(case, kinds=(f"grad:{kind}",), faulty_kinds=(kind,)))
    if not causes:
        return "", ""
    text = causes[0].text.removeprefix("block behaves as ").partition("; residual")[0]
    return causes[0].name, text


def differentiate_elu(x: AnyArray) -> AnyArray:
    return np.where(x > 0, 1.0, np.exp(np.minimum(x, 0.0)))


def differentiate_sigmoid(x: AnyArray) -> AnyArray:
    return np.exp(-x) / np.square(1 + np.exp(-x))


@pytest.mark.parametrize(("kind", "result", "derivative"), [
    ("elu", np.where(X > 0, X, np.expm1(np.minimum(X, 0.0))), differentiate_elu),
    ("sigmoid", 1 / (1 + np.exp(-X)), differentiate_sigmoid),
    ("tanh", np.tanh(X), lambda x: 1 - np.square(np.tanh(x))),
])  # fmt: skip
def test_the_result_may_be_taken_for_the_input(kind, result, derivative) -> None:
    assert explain(kind, GRADIENT * derivative(result), GRADIENT * derivative(X)) == (
        "input-source",
        f"the derivative of {kind} at its result; the reference takes it at its input",
    )


def test_the_input_may_be_taken_for_the_result() -> None:
    faithful = GRADIENT * (1 - np.square(np.tanh(X)))
    assert explain("tanh", GRADIENT * (1 - np.square(X)), faithful) == (
        "input-source",
        "the derivative of tanh with its input in place of its result; the reference takes it at "
        "its input",
    )


@pytest.mark.parametrize(
    ("has_gate", "cause", "sentence"),
    [
        (
            True,
            "gradient-stopped",
            "with its gate as a constant; the reference has that of the gate",
        ),
        (False, "missing-term", "of the gate of silu alone; the reference has the gate as well"),
    ],
)
def test_one_term_of_a_gated_activation_may_be_left_out(has_gate, cause, sentence) -> None:
    gate = 1 / (1 + np.exp(-X))
    terms = GRADIENT * gate, GRADIENT * X * gate * (1 - gate)
    name, text = explain("silu", terms[0] if has_gate else terms[1], terms[0] + terms[1])
    assert name == cause
    assert sentence in text


def test_another_factor_is_no_derivative() -> None:
    faithful = GRADIENT * (1 - np.square(np.tanh(X)))
    assert explain("tanh", GRADIENT * RNG.random(X.shape), faithful) == ("", "")
