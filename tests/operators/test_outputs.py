"""Every output of gradients, norms, convolutions and scatters, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dumpdiff.model.arrays import AnyArray
from dumpdiff.operators import OUTPUT_KINDS, compute_gradients, compute_outputs, recompute

_RANDOM = np.random.default_rng(5)
X = _RANDOM.standard_normal((4, 6, 8))
G = _RANDOM.standard_normal((4, 6, 8))
V = _RANDOM.standard_normal(8)
IMAGES = _RANDOM.standard_normal((2, 3, 9, 9))
KERNEL = _RANDOM.standard_normal((5, 3, 3, 3))


def compute_best(
    kind: str, inputs: list[AnyArray | float], expected: list[AnyArray]
) -> tuple[AnyArray | None, ...]:
    """Return the outputs of the interpretation that is nearest to the expected first output."""
    sets = [outputs for _, outputs in compute_outputs(kind, inputs, {}, expected[0].shape)]
    assert sets, f"nothing is computed for {kind}"

    def measure_distance(outputs: tuple[AnyArray | None, ...]) -> float:
        pairs = zip(outputs, expected, strict=False)
        return sum(
            float(np.abs(output - value).max()) for output, value in pairs if output is not None
        )

    return min(sets, key=measure_distance)


def differentiate(
    function: Callable[..., torch.Tensor], inputs: list[AnyArray], gradient: AnyArray
) -> list[AnyArray]:
    """Return the gradients of all inputs, as autograd computes them."""
    tensors = [torch.tensor(array, requires_grad=True) for array in inputs]
    function(*tensors).backward(torch.tensor(gradient))
    return [tensor.grad.numpy() for tensor in tensors if tensor.grad is not None]


@pytest.mark.parametrize(
    ("kind", "function", "needs", "gradient_first"),
    [
        ("grad:relu", torch.relu, "output", True),
        ("grad:sigmoid", torch.sigmoid, "output", False),
        ("grad:tanh", torch.tanh, "output", False),
        ("grad:rsqrt", lambda x: torch.rsqrt(x * x + 1), "rsqrt", False),
        ("grad:silu", F.silu, "input", True),
        ("grad:gelu", F.gelu, "input", True),
        ("grad:gelu", lambda x: F.gelu(x, approximate="tanh"), "input", True),
        ("grad:softmax", lambda x: F.softmax(x, -1), "output", False),
        ("grad:log_softmax", lambda x: F.log_softmax(x, -1), "output", False),
    ],
)
def test_gradients_of_activations_are_those_of_autograd(
    kind: str, function: Callable[..., torch.Tensor], needs: str, gradient_first: bool
) -> None:
    argument = X
    if needs == "rsqrt":
        function, argument = torch.rsqrt, X * X + 1
    (expected,) = differentiate(function, [argument], G)
    known = argument if needs == "input" else function(torch.tensor(argument)).numpy()
    inputs: list[AnyArray | float] = [G, known] if gradient_first else [known, G]
    (output,) = compute_best(kind, inputs, [expected])
    assert output is not None
    np.testing.assert_allclose(output, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_gradient_of_normalized_vectors_is_that_of_autograd(axis: int) -> None:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x, dim=axis)

    (expected,) = differentiate(normalize, [X], G)
    (output,) = compute_best(
        "grad:normalize", [X, normalize(torch.tensor(X)).numpy(), G], [expected]
    )
    assert output is not None
    np.testing.assert_allclose(output, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "function", "second"),
    [
        ("tanh", lambda x, y: torch.tanh(x), X),
        ("pow", torch.pow, 3.0),
        ("div", torch.div, X + 4),
        ("maximum", torch.maximum, X[::-1].copy()),
    ],
)
def test_the_gradient_of_the_first_of_two_numbers_is_that_of_autograd(
    kind: str, function: Callable[..., torch.Tensor], second: AnyArray | float
) -> None:
    (expected, *_) = differentiate(lambda x: function(x, torch.tensor(second)), [X], G)
    (_, gradient), *_ = compute_gradients(kind, [G, X, second])
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("deviation", ["variance", "1 / std"])
def test_layer_norm_has_three_outputs_and_three_gradients(deviation: str) -> None:
    mean, variance = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    scale = 1 / np.sqrt(variance + 1e-5)
    recorded = variance if deviation == "variance" else scale
    output = F.layer_norm(
        *map(torch.tensor, (X,)), (8,), torch.tensor(V), torch.tensor(V + 1), 1e-5
    )
    outputs = compute_best("layer_norm", [X, V, V + 1, 1e-5], [output.numpy(), mean, recorded])
    for computed, expected in zip(outputs, (output.numpy(), mean, recorded), strict=True):
        assert computed is not None
        np.testing.assert_allclose(computed, expected, rtol=1e-12, atol=1e-12)
    gradients = differentiate(lambda x, v, b: F.layer_norm(x, (8,), v, b, 1e-5), [X, V, V + 1], G)
    computed_gradients = compute_best("grad:layer_norm", [X, G, recorded, mean, V], gradients)
    for computed, expected in zip(computed_gradients, gradients, strict=True):
        assert computed is not None
        np.testing.assert_allclose(computed, expected, rtol=1e-10, atol=1e-11)


def test_batch_norm_and_its_gradients() -> None:
    weight, bias = np.array([1.5, -0.5, 2.0]), np.array([0.1, 0.2, 0.3])
    mean, variance = IMAGES.mean((0, 2, 3)), IMAGES.var((0, 2, 3))

    def normalize(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, w, b, training=True, eps=1e-5)

    expected = normalize(*map(torch.tensor, (IMAGES, weight, bias))).numpy()
    outputs = compute_best("batch_norm", [IMAGES, weight, bias, 1e-5, 0.1], [expected])
    assert outputs[0] is not None
    assert outputs[3] is not None
    assert outputs[4] is not None
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(outputs[3], mean)
    np.testing.assert_allclose(outputs[4], variance)
    gradient = _RANDOM.standard_normal(IMAGES.shape)
    gradients = differentiate(normalize, [IMAGES, weight, bias], gradient)
    inputs: list[AnyArray | float] = [gradient, IMAGES, weight, mean, variance, 1e-5]
    for computed, value in zip(
        compute_best("grad:batch_norm", inputs, gradients), gradients, strict=True
    ):
        assert computed is not None
        np.testing.assert_allclose(computed, value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1), (3, 0)])
def test_convolutions_and_their_gradients(stride: int, padding: int) -> None:
    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, stride=stride, padding=padding)

    expected = convolve(torch.tensor(IMAGES), torch.tensor(KERNEL)).numpy()
    (output,) = compute_best("convolution", [IMAGES, KERNEL], [expected])
    assert output is not None
    np.testing.assert_allclose(output, expected, rtol=1e-11, atol=1e-12)
    gradient = _RANDOM.standard_normal(expected.shape)
    by_input, by_weight = differentiate(convolve, [IMAGES, KERNEL], gradient)
    (output,) = compute_best("conv2dbackpropinput", [gradient, KERNEL], [by_input])
    assert output is not None
    np.testing.assert_allclose(output, by_input, rtol=1e-11, atol=1e-12)
    (output,) = compute_best("conv2dbackpropfilter", [gradient, IMAGES], [by_weight])
    assert output is not None
    np.testing.assert_allclose(output, by_weight, rtol=1e-11, atol=1e-12)


def test_slices_and_the_gradients_of_slices() -> None:
    numbers = [np.array([0, 2, 6]), np.array([4, 6, 0]), np.array([1, 2, 1])]
    expected = X[:, 2:6:2, 6:]  # the last axis has an end of 0: it is masked
    (output,) = compute_best("slice", [X, *numbers], [expected])
    np.testing.assert_array_equal(output, expected)
    (output,) = compute_best(
        "slice", [X, np.array([1, 0, 2]), np.array([2, -1, 3])], [X[1:3, :, 2:5]]
    )
    np.testing.assert_array_equal(output, X[1:3, :, 2:5])
    scattered = np.zeros_like(X)
    scattered[:, 2:6:2, 6:] = expected
    inputs: list[AnyArray | float] = [expected, np.array(X.shape), *numbers]
    (output,) = compute_best("grad:slice", inputs, [scattered])
    np.testing.assert_array_equal(output, scattered)


def test_tiles_broadcasts_and_one_hot_codes() -> None:
    (output,) = compute_best("expand", [V, np.array([3])], [np.tile(V, 3)])
    np.testing.assert_array_equal(output, np.tile(V, 3))
    (output,) = compute_best("expand", [V], [np.broadcast_to(V, (2, 8))])
    np.testing.assert_array_equal(output, [V, V])
    repeated = np.repeat(X, 2, axis=1)
    (output,) = compute_best("expand", [X], [repeated])
    np.testing.assert_array_equal(output, repeated)
    ids = np.array([[2, 0], [1, 3]])
    (output,) = compute_best("one_hot", [ids, 4, 1.0, 0.0, -1], [np.eye(4)[ids]])
    np.testing.assert_array_equal(output, np.eye(4)[ids])


def test_scatters_add_what_falls_on_one_place() -> None:
    rows, ids = X[0], np.array([1, 0, 1, 2, -1, 1])
    expected = np.zeros((3, 8))
    np.add.at(expected, ids[ids >= 0], rows[ids >= 0])
    (output,) = compute_best("segment_sum", [rows, ids, 3], [expected])
    np.testing.assert_allclose(output, expected)
    (output,) = compute_best("scatter", [np.array([[1], [1], [0]]), V[:3]], [np.zeros(4)])
    np.testing.assert_allclose(output, [V[2], V[0] + V[1], 0, 0])
    places = np.array([[0], [7], [3], [3], [2], [1]])
    (expected_gradient,) = differentiate(
        lambda x: torch.gather(x, -1, torch.tensor(places)), [rows], V[:6, None]
    )
    inputs: list[AnyArray | float] = [rows, -1, places, V[:6, None]]
    (output,) = compute_best("grad:gather_elements", inputs, [expected_gradient])
    np.testing.assert_allclose(output, expected_gradient)


@pytest.mark.parametrize("axis", [0, 1])
def test_updates_are_added_along_an_axis(axis: int) -> None:
    """As PyTorch does; a negative number of a row is left out."""
    x, ids = torch.tensor(X[0]), torch.tensor([1, 0, 1])
    updates = torch.tensor(X[1].take([4, 2, 3], axis))
    places = ids.unsqueeze(1 - axis).expand_as(updates)
    first = updates.narrow(axis, 0, 2)
    for indices, expected in (
        (ids, x.index_add(axis, ids, updates)),
        (places, x.scatter_add(axis, places, updates)),
        (torch.tensor([1, 0, -1]), x.index_add(axis, ids[:2], first)),
    ):
        arrays = [x.numpy(), axis, indices.numpy(), updates.numpy()]
        output = recompute("scatter_add", arrays, recorded_output=expected.numpy())
        np.testing.assert_allclose(output, expected)


def test_topk_leaves_out_the_indices_of_equal_values() -> None:
    values, indices = (tensor.numpy() for tensor in torch.topk(torch.tensor(X), 3))
    outputs = compute_best("topk", [X, 3], [values])
    np.testing.assert_array_equal(outputs[0], values)
    np.testing.assert_array_equal(outputs[1], indices)
    equal = np.ones((2, 4))
    assert compute_best("topk", [equal, 2], [np.ones((2, 2))])[1] is None


def test_a_sum_along_either_axis_of_a_square_matrix_is_tried() -> None:
    square = X[0, :, :6]
    outputs = [output for _, (output,) in compute_outputs("sum", [square], {}, (6,))]
    np.testing.assert_allclose(outputs[0], square.sum(1))
    np.testing.assert_allclose(outputs[1], square.sum(0))


def test_unknown_kinds_and_unsuitable_inputs_give_nothing() -> None:
    assert "fft" not in OUTPUT_KINDS
    assert list(compute_outputs("fft", [X], {}, X.shape)) == []
    assert list(compute_outputs("grad:relu", [X, V], {}, X.shape)) == []
    assert list(compute_outputs("grad:layer_norm", [X], {}, X.shape)) == []
    assert list(compute_outputs("add", [X], {}, X.shape)) == []
