"""Every operator's arithmetic against PyTorch in float64, and against what real runs recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.graph import Flow
from dumpdiff.operators import (
    KINDS,
    compute_gradients,
    compute_interpretations,
    compute_relative_distance,
    read_execution,
    recompute,
)
from dumpdiff.operators.call import find_reduced_axes
from dumpdiff.rulebook import load_rules

X = np.random.default_rng(1).standard_normal((2, 3, 8))
W = np.random.default_rng(2).standard_normal((5, 8))
V = np.random.default_rng(3).standard_normal(8)
LABELS = np.array([3, 0, 7, 2, 1, 5])
PIXELS = np.where(X[0, 0].reshape(1, 4, 2) > 1, 255, np.arange(16).reshape(2, 4, 2) % 3)
SHARES = np.exp(X[::-1].reshape(6, 8)) / np.exp(X[::-1].reshape(6, 8)).sum(-1, keepdims=True)

#: kind, inputs, keyword arguments, the same in PyTorch
CASES: list[tuple[str, list[object], dict[str, float], Callable[..., torch.Tensor]]] = [
    ("add", [X, V], {}, lambda x, v: x + v),
    ("add", [X, V], {"alpha": 3.0}, lambda x, v: torch.add(x, v, alpha=3)),
    ("mul", [X, 0.25], {}, lambda x, c: x * c),
    ("div", [X, V], {}, lambda x, v: x / v),
    ("rsqrt", [X * X + 1], {}, torch.rsqrt),
    ("silu", [X], {}, F.silu),
    ("gelu", [X], {}, F.gelu),
    ("gelu", [X], {}, lambda x: F.gelu(x, approximate="tanh")),
    ("relu", [X], {}, F.relu),
    ("softplus", [X], {}, F.softplus),
    ("mish", [X], {}, F.mish),
    ("hardswish", [X], {}, F.hardswish),
    ("elu", [X], {}, F.elu),
    ("sigmoid", [X], {}, torch.sigmoid),
    ("leaky_relu", [X, 0.2], {}, F.leaky_relu),
    ("glu", [X], {}, F.glu),
    ("rms_norm", [X, V], {"eps": 1e-3}, lambda x, v: F.rms_norm(x, (8,), v, 1e-3)),
    ("layer_norm", [X, V, V + 1], {"eps": 1e-3}, lambda x, v, b: F.layer_norm(x, (8,), v, b, 1e-3)),
    ("softmax", [X], {"dim": 1}, lambda x: F.softmax(x, 1)),
    ("log_softmax", [X], {"dim": -1}, lambda x: F.log_softmax(x, -1)),
    ("matmul", [X, W], {}, F.linear),
    ("matmul", [X, W, W[:, 0].copy()], {}, F.linear),
    ("matmul", [X, np.swapaxes(X, 1, 2).copy()], {}, torch.matmul),
    ("addmm", [np.ones((3, 5)), X[0], W.T.copy()], {}, torch.addmm),
    ("mean", [X], {"dim": -1}, lambda x: x.mean(-1)),
    ("sum", [X], {"dim": 1}, lambda x: x.sum(1)),
    ("var", [X], {"dim": -1}, lambda x: x.var(-1)),
    ("logsumexp", [X], {"dim": -1}, lambda x: x.logsumexp(-1)),
    ("cumsum", [X], {"dim": 1}, lambda x: x.cumsum(1)),
    ("cross_entropy", [X.reshape(6, 8), LABELS], {}, F.cross_entropy),
    (
        "cross_entropy",
        [X.reshape(6, 8), LABELS],
        {},
        lambda x, y: F.cross_entropy(x, y, reduction="none"),
    ),
    ("cross_entropy", [X.reshape(6, 8), LABELS, abs(V)], {}, F.cross_entropy),
    (
        "cross_entropy",
        [X.reshape(6, 8), LABELS, abs(V)],
        {"label_smoothing": 0.1},
        lambda x, y, w: F.cross_entropy(x, y, w, label_smoothing=0.1),
    ),
    (
        "cross_entropy",
        [X.reshape(2, 3, 4, 2), PIXELS],
        {"ignore_index": 255.0},
        lambda x, y: F.cross_entropy(x, y, ignore_index=255),
    ),
    (
        "cross_entropy",
        [X.reshape(2, 3, 4, 2), PIXELS, abs(V[:3])],
        {"ignore_index": 255.0},
        lambda x, y, w: F.cross_entropy(x, y, w, ignore_index=255),
    ),
    ("cross_entropy", [X.reshape(6, 8), SHARES], {}, F.cross_entropy),
    ("nll_loss", [X.reshape(6, 8), LABELS, abs(V)], {}, F.nll_loss),
    ("kl_div", [X.reshape(6, 8), SHARES], {}, lambda x, y: F.kl_div(x, y, reduction="none")),
    ("kl_div", [X.reshape(6, 8), SHARES], {}, lambda x, y: F.kl_div(x, y, reduction="batchmean")),
    (
        "kl_div",
        [X.reshape(6, 8), np.log(SHARES)],
        {"log_target": 1.0},
        lambda x, y: F.kl_div(x, y, log_target=True, reduction="sum"),
    ),
    ("gather_rows", [LABELS[:4], X[0].T.copy()], {}, F.embedding),
    ("gather_rows", [X, np.array([2, 0, 2, 1, 0])], {}, lambda x, i: x.index_select(1, i)),
    ("gather_rows", [X, np.array([3, 7])], {}, lambda x, i: x.index_select(2, i)),
    (
        "gather_rows",  # of each batch its own rows
        [X, np.array([[2, 0, 0, 1], [1, 1, 2, 0]])],
        {},
        lambda x, i: torch.stack([own[rows] for own, rows in zip(x, i, strict=True)]),
    ),
    ("attention", [X[None], X[None] + 1, X[None] * 2], {}, F.scaled_dot_product_attention),
    (
        "attention",
        [X[None], X[None] + 1, X[None] * 2],
        {"is_causal": 1.0},
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
    ),
    (
        "attention",
        [X[None], X[None] + 1, X[None] * 2, np.array([True, True, False])[None, None, None]],
        {},
        F.scaled_dot_product_attention,
    ),
]


def convert_to_torch(value: object) -> object:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("kind", "inputs", "keywords", "compute_expected"), CASES)
def test_agrees_with_pytorch_in_float64(
    kind: str,
    inputs: list[object],
    keywords: dict[str, float],
    compute_expected: Callable[..., torch.Tensor],
) -> None:
    expected = compute_expected(*map(convert_to_torch, inputs)).numpy()
    output = recompute(kind, inputs, keywords, recorded_output=expected)
    assert output is not None
    assert output.dtype == np.float64
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-13)


def test_unknown_kinds_and_unsuitable_inputs_give_nothing() -> None:
    assert "fft" not in KINDS
    assert recompute("fft", [X]) is None
    assert recompute("matmul", [X, np.ones((4, 4))]) is None
    assert recompute("rms_norm", []) is None


def test_the_recorded_output_selects_the_interpretation() -> None:
    x, square = X[..., :5], W[:, :5].copy()
    names = [name for name, _ in compute_interpretations("matmul", [x, square])]
    assert names[0] == "b transposed"
    output = recompute("matmul", [x, square], recorded_output=x @ square)
    assert output is not None
    np.testing.assert_allclose(output, x @ square)


@pytest.mark.parametrize("name", ["demo_mindspore", "demo_pytorch", "ms_graph", "v6.0_api_stack"])
def test_real_runs_agree_with_the_arithmetic(name: str, flow: Callable[[str], Flow]) -> None:
    """Every forward op of a known kind; MindSpore's CPU kernels err most, in exp."""
    side, rules, n_checked = flow(name), load_rules([]), 0
    for op, phase in enumerate(side.phases):
        kind = rules.resolve_kind(side.trace.ops["kind"].iat[op])
        execution = read_execution(side.trace, side.get_tensor_ids(op).tolist())
        if phase != "forward" or execution is None:
            continue
        inputs, recorded = execution.inputs, execution.output
        output = recompute(kind, inputs, execution.keywords, recorded_output=recorded)
        if output is not None:
            n_checked += 1
            assert compute_relative_distance(output, recorded) <= 1e-6, (kind, op)
    assert n_checked > 100


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.data())
def test_the_reduced_axes_give_the_shape_of_the_output(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    keepdims = data.draw(st.booleans())
    output_shape = np.zeros(shape).sum(axis=axes, keepdims=keepdims).shape if axes else shape
    found_axes = find_reduced_axes(shape, output_shape)
    assert found_axes is not None
    has_all_axes = len(output_shape) == len(shape)
    assert np.zeros(shape).sum(axis=found_axes, keepdims=has_all_axes).shape == output_shape


def test_a_number_that_is_no_axis_is_none() -> None:
    """The fill of a mask is infinite, and other ops record a NaN."""
    x = np.arange(6.0).reshape(2, 3)
    names = [name for name, _ in compute_interpretations("sum", [x, -np.inf, np.nan, 1.0])]
    assert names == [name for name, _ in compute_interpretations("sum", [x, 1.0])]


GRADIENTS = [
    ("tanh", {}, torch.tanh),
    ("softplus", {"beta": 2.0}, lambda x: F.softplus(x, beta=2)),
    ("leaky_relu", {"negative_slope": 0.2}, lambda x: F.leaky_relu(x, 0.2)),
    ("gelu", {}, F.gelu),
    ("mish", {}, F.mish),
    ("exp", {}, torch.exp),
]


@pytest.mark.parametrize(("kind", "keywords", "function"), GRADIENTS)
def test_the_gradient_of_a_function_is_that_of_autograd(
    kind: str, keywords: dict[str, float], function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.tensor(X, requires_grad=True)
    gradient = np.sin(X)
    function(x).backward(torch.tensor(gradient))
    candidates = [output for _, output in compute_gradients(kind, (gradient, X), keywords)]
    assert min(compute_relative_distance(output, x.grad.numpy()) for output in candidates) < 1e-9


@pytest.mark.parametrize(("kind", "vectors", "keywords", "function"), [
    ("layer_norm", [V], {"eps": 1e-3}, lambda x, v: F.layer_norm(x, (8,), v, eps=1e-3)),
    ("group_norm", [3.0, V[:3]], {"eps": 1e-3}, lambda x, _, v: F.group_norm(x, 3, v, eps=1e-3)),
    ("instance_norm", [], {}, F.instance_norm),
])  # fmt: skip
def test_the_gradient_of_a_norm_is_that_of_autograd(
    kind: str,
    vectors: list[object],
    keywords: dict[str, float],
    function: Callable[..., torch.Tensor],
) -> None:
    x = torch.tensor(X, requires_grad=True)
    gradient = np.sin(X)
    function(x, *map(torch.as_tensor, vectors)).backward(torch.tensor(gradient))
    name, output = next(iter(compute_gradients(kind, (gradient, X, *vectors), keywords)))
    assert compute_relative_distance(output, x.grad.numpy()) < 1e-9, name


def test_a_sum_has_no_gradient_of_single_numbers() -> None:
    assert not list(compute_gradients("sum", (X, X)))
