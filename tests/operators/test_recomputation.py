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
from dumpdiff.operators import KINDS, read_execution, compute_relative_distance, compute_interpretations, recompute
from dumpdiff.operators.call import find_reduced_axes
from dumpdiff.rulebook import load_rules

X = np.random.default_rng(1).standard_normal((2, 3, 8))
W = np.random.default_rng(2).standard_normal((5, 8))
V = np.random.default_rng(3).standard_normal(8)
LABELS = np.array([3, 0, 7, 2, 1, 5])

#: kind, inputs, keyword arguments, what PyTorch says
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
    ("gather_rows", [LABELS[:4], X[0].T.copy()], {}, F.embedding),
    ("attention", [X[None], X[None] + 1, X[None] * 2], {}, F.scaled_dot_product_attention),
    (
        "attention",
        [X[None], X[None] + 1, X[None] * 2],
        {"is_causal": 1.0},
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
    ),
]


def as_torch(value: object) -> object:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("kind", "inputs", "named", "expected"), CASES)
def test_agrees_with_pytorch_in_float64(
    kind: str, inputs: list[object], named: dict[str, float], expected: Callable[..., torch.Tensor]
) -> None:
    wanted = expected(*map(as_torch, inputs)).numpy()
    made = recompute(kind, inputs, named, recorded_output=wanted)
    assert made is not None
    assert made.dtype == np.float64
    np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=1e-13)


def test_what_it_does_not_know_it_does_not_guess() -> None:
    assert "fft" not in KINDS
    assert recompute("fft", [X]) is None
    assert recompute("matmul", [X, np.ones((4, 4))]) is None
    assert recompute("rms_norm", []) is None


def test_the_recorded_output_chooses_among_readings() -> None:
    square = W[:, :5].copy()
    names = [name for name, _ in compute_interpretations("matmul", [X[..., :5], square])]
    assert names[0] == "b transposed"
    plain = recompute("matmul", [X[..., :5], square], recorded_output=X[..., :5] @ square)
    assert plain is not None
    np.testing.assert_allclose(plain, X[..., :5] @ square)


@pytest.mark.parametrize("name", ["demo_mindspore", "demo_pytorch", "ms_graph", "v6.0_api_stack"])
def test_real_runs_computed_what_the_arithmetic_says(
    name: str, flow: Callable[[str], Flow]
) -> None:
    """Every forward op of a kind that is known here; MindSpore's CPU kernels err most, in exp."""
    side, rules, checked = flow(name), load_rules([]), 0
    for op, phase in enumerate(side.phases):
        kind, ran = (
            rules.resolve_kind(side.trace.ops["kind"].iat[op]),
            read_execution(side.trace, side.get_tensor_ids(op).tolist()),
        )
        if phase == "forward" and ran is not None:
            made = recompute(kind, ran.inputs, ran.keywords, recorded_output=ran.output)
            if made is not None:
                checked += 1
                assert compute_relative_distance(made, ran.output) <= 1e-6, (kind, op)
    assert checked > 100


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.data())
def test_the_axes_of_a_reduction_give_its_shape(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    keep = data.draw(st.booleans())
    after = np.zeros(shape).sum(axis=axes, keepdims=keep).shape if axes else shape
    found = find_reduced_axes(shape, after)
    assert found is not None
    assert np.zeros(shape).sum(axis=found, keepdims=len(after) == len(shape)).shape == after
