"""Norms inside a region: other axes, no weight and bias, the other variance."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.model.arrays import AnyArray

from .test_composites import explain_region, make_region

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 8, 4, 4))
WEIGHT, BIAS = 1 + 0.3 * RNG.standard_normal(8), RNG.standard_normal(8)
NORM = make_region(
    [
        ("group_norm", [("x", X), ("n", 4.0), ("n.weight", WEIGHT), ("n.bias", BIAS)]),
        ("sigmoid", [("last", 0)]),
    ]
)


def normalize(axes: tuple[int, ...], weight: AnyArray = WEIGHT, bias: AnyArray = BIAS) -> AnyArray:
    centered = X - X.mean(axis=axes, keepdims=True)
    normalized = centered / np.sqrt(np.mean(centered**2, axis=axes, keepdims=True) + 1e-5)
    output = normalized * weight.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)
    return 1 / (1 + np.exp(-output))


@pytest.mark.parametrize(
    ("axes", "cause", "said"),
    [
        ((0, 2, 3), "norm-kind", "batch norm (over batch and pixels)"),
        ((1,), "norm-kind", "layer norm over the channels of each pixel"),
    ],
)
def test_norm_over_other_elements(axes: tuple[int, ...], cause: str, said: str) -> None:
    assert explain_region(NORM, normalize(axes)) == (
        cause,
        f"{said}; the reference has group norm with 4 groups",
    )


def test_norm_without_weight_and_bias() -> None:
    grouped = X.reshape(2, 4, -1)
    centered = grouped - grouped.mean(axis=-1, keepdims=True)
    output = centered / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + 1e-5)
    faulty = 1 / (1 + np.exp(-output.reshape(X.shape)))
    assert explain_region(NORM, faulty) == (
        "affine-missing",
        "group norm with 4 groups without weight and bias",
    )


TOKENS = RNG.standard_normal((2, 6, 8))
PROJECTION = RNG.standard_normal((5, 8))
WRITTEN_NORM = make_region(
    [
        ("square", [("x", TOKENS)]),
        ("mean", [("last", 0), ("axis", -1.0)]),
        ("add", [("last", 0), ("eps", 1e-5)]),
        ("rsqrt", [("last", 0)]),
        ("mul", [("x", TOKENS), ("3", 0)]),
        ("mul", [("last", 0), ("n.weight", WEIGHT)]),
        ("matmul", [("last", 0), ("fc.weight", PROJECTION)]),
    ],
    {1: (2, 6, 1), 2: (2, 6, 1), 3: (2, 6, 1), 6: (2, 6, 5)},
)


def project_norm(x: AnyArray, weight: AnyArray = WEIGHT, eps: float = 1e-5) -> AnyArray:
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + eps) * weight @ PROJECTION.T


def normalize_groups(x: AnyArray) -> AnyArray:
    groups = x.reshape(*x.shape[:-1], 2, -1)
    return (groups / np.sqrt(np.mean(groups**2, -1, keepdims=True) + 1e-5)).reshape(x.shape)


CENTERED = TOKENS - TOKENS.mean(-1, keepdims=True)


@pytest.mark.parametrize(
    ("faulty", "cause", "said"),
    [
        (
            TOKENS @ PROJECTION.T,
            "norm-missing",
            "no RMS norm of x; the reference normalizes it",
        ),
        (
            project_norm(TOKENS, np.ones(8)),
            "affine-missing",
            "RMS norm of x without its weight",
        ),
        (
            project_norm(CENTERED),
            "norm-kind",
            "layer norm of x; the reference has RMS norm",
        ),
        (
            (normalize_groups(TOKENS) * WEIGHT) @ PROJECTION.T,
            "norm-groups",
            "RMS norm of x in 2 groups; the reference has one group",
        ),
        (
            project_norm(TOKENS, eps=0.1),
            "epsilon",
            "epsilon = 0.1; the reference uses 1e-05",
        ),
    ],
)
def test_norm_that_is_written_out(faulty: AnyArray, cause: str, said: str) -> None:
    assert explain_region(WRITTEN_NORM, faulty) == (cause, said)


@pytest.mark.parametrize(("eps", "said"), [(0.0, "epsilon = 0"), (1e-3, "epsilon = 0.001")])
def test_the_epsilon_of_a_norm_is_another_one_although_none_is_recorded(
    eps: float, said: str
) -> None:
    x = 0.05 * X.swapaxes(1, 3)
    region = make_region([("layer_norm", [("x", x), ("n.weight", WEIGHT), ("n.bias", BIAS)])])
    centered = x - x.mean(-1, keepdims=True)
    faulty = centered / np.sqrt(np.mean(centered**2, -1, keepdims=True) + eps) * WEIGHT + BIAS
    assert explain_region(region, faulty) == ("epsilon", f"{said}; the reference uses 1e-05")
