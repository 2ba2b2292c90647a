"""Activations inside a region: recognized by value, whatever the ops that one side wrote down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES
from dumpdiff.model.arrays import AnyArray
from dumpdiff.operators.activations import celu, elu, gelu, leaky_relu, relu, sigmoid, silu
from dumpdiff.operators.attention import attention

from .fault_cases import make_fault_case
from .test_composites import BIAS, WEIGHT, X, explain_region, make_region

#: silu as MindSpore writes it, then a linear layer: no value in between is compared.
SILU = make_region(
    [
        ("sigmoid", [("x", X)]),
        ("mul", [("x", X), ("last", 0)]),
        ("matmul", [("last", 0), ("proj.weight", WEIGHT)]),
        ("add", [("last", 0), ("proj.bias", BIAS)]),
    ]
)


def project(x: AnyArray) -> AnyArray:
    return x @ WEIGHT.T + BIAS


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (gelu, "gelu (erf)"),
        (lambda x: x * sigmoid(1.702 * x), "gelu (sigmoid)"),
        (lambda x: x, "no activation"),
        (np.tanh, "tanh"),
        (lambda x: leaky_relu(x, 0.2), "leaky relu (0.2)"),
        (lambda x: elu(x, 0.5), "elu (alpha 0.5)"),
        (lambda x: celu(x, 2.0), "celu (alpha 2)"),
        (lambda x: x * sigmoid(1.5 * x), "x sigmoid(1.5 x)"),
    ],
)
def test_written_out_silu_is_replaced_as_a_whole(
    function: Callable[[AnyArray], AnyArray], said: str
) -> None:
    assert explain_region(SILU, project(function(X))) == (
        "activation-kind",
        f"{said}; the reference has silu",
    )


def test_form_of_gelu_is_a_variant() -> None:
    region = make_region([("gelu", [("x", X)]), ("matmul", [("last", 0), ("w.weight", WEIGHT)])])
    assert explain_region(region, gelu_tanh_product()) == (
        "gelu-variant",
        "gelu (tanh); the reference has gelu (erf)",
    )


def gelu_tanh_product() -> AnyArray:
    cubic = np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)
    return 0.5 * X * (1 + np.tanh(cubic)) @ WEIGHT.T


def test_relu_that_is_clamped() -> None:
    region = make_region([("relu", [("x", X)]), ("matmul", [("last", 0), ("w.weight", WEIGHT)])])
    assert explain_region(region, np.minimum(relu(X), 1.25) @ WEIGHT.T) == (
        "clamp",
        "relu_0 (relu) clamped to at most 1.25; the reference does not clamp it",
    )


def test_activation_of_clamped_values() -> None:
    assert explain_region(SILU, project(silu(np.clip(X, -1.5, 1.5)))) == (
        "clamp",
        "what silu reads clamped to 1.5 on both sides; the reference does not clamp it",
    )


def test_keys_that_are_clamped_before_they_are_squared_for_a_norm() -> None:
    keys = X @ WEIGHT.T
    region = make_region([("pow", [("k_proj (matmul)", keys), ("exponent", 2.0)])])
    (step,) = region.steps
    read_keys = replace(step.inputs[0], producer_kind="matmul")
    region = replace(region, steps=(replace(step, inputs=(read_keys, *step.inputs[1:])),))
    assert explain_region(region, np.clip(keys, -1, 1) ** 2) == (
        "clamp",
        "k_proj (matmul) clamped to 1 on both sides; the reference does not clamp it",
    )


def test_values_that_are_clamped_before_a_fused_attention() -> None:
    query, key, value = np.random.default_rng(3).standard_normal((3, 1, 2, 6, 8))
    region = make_region([("attention", [("q", query), ("k", key), ("v", value)])])
    faulty = attention(query, key, np.clip(value, -1, 1), 8**-0.5)
    assert explain_region(region, faulty)[0] == "clamp"


def test_a_clamp_that_is_left_out_is_a_clamp() -> None:
    sums = np.random.default_rng(4).uniform(0.1, 3.0, (4, 6))
    region = make_region([
        ("clamp", [("sums", sums), ("min", 1.0), ("max", 9.0)]),
        ("mul", [("last", 0), ("w", 0.5)]),
    ])  # fmt: skip
    assert explain_region(region, 0.5 * sums) == ("clamp", "without clamp_0 (clamp)")


def test_what_is_one_number_beside_zeros_is_not_clamped() -> None:
    """A discount by the same number of steps in all rows, and none where an episode ends."""
    goes_on = (np.arange(24) % 5 > 0).astype(float)
    powers = 0.9 ** (1.0 + np.arange(24) % 3)
    region = make_region([("mul", [("powers", powers), ("goes_on", goes_on)])])
    name, _ = explain_region(region, 0.9**3 * goes_on)
    assert name != "clamp"


def test_ops_in_a_row_are_left_out_together() -> None:
    """Bounds by a hyperbolic tangent, which read numbers that no op computed."""
    logarithms = np.random.default_rng(5).standard_normal((4, 6))
    region = make_region([
        ("tanh", [("logarithms", logarithms)]),
        ("add", [("last", 0), ("one", 1.0)]),
        ("mul", [("last", 0), ("half", 3.5)]),
        ("add", [("last", 0), ("low", -5.0)]),
        ("exp", [("last", 0)]),
    ])  # fmt: skip
    case = make_fault_case(np.exp(logarithms), region.steps[-1].output, {}, scope="block")
    kinds = tuple(step.kind for step in region.steps)
    case = replace(case, load_region=lambda: region, kinds=kinds, faulty_kinds=("exp",))
    (cause, *_) = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    assert "without tanh_0 (tanh), add_1 (add), mul_2 (mul), add_3 (add)" in cause.text
