"""Recurrent layers in float64, against PyTorch's operators."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.operators import compute_interpretations, compute_relative_distance
from dumpdiff.operators.call import make_call
from dumpdiff.operators.recurrence import list_recurrences

torch = pytest.importorskip("torch")

N_STATES = {"lstm": 2, "gru": 1, "rnn": 1}


def record_layers(kind: str, *, has_states: bool = True, **settings: object):
    """Return (inputs, output) of PyTorch's operator for x of 7 by 3 rows of 5 numbers."""
    torch.manual_seed(3)
    layers = getattr(torch.nn, kind.upper())(5, 6, **settings)
    n_layers = layers.num_layers * (2 if layers.bidirectional else 1)
    x = torch.randn(7, 3, 5)
    batch = 7 if layers.batch_first else 3
    states = [torch.randn(n_layers, batch, 6) for _ in range(N_STATES[kind] * has_states)]
    given = (tuple(states) if kind == "lstm" else states[0]) if has_states else None
    output, _ = layers(x, given)
    inputs = [x, *states, *(parameter.detach() for parameter in layers.parameters())]
    return [tensor.numpy() for tensor in inputs], output.detach().numpy()


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_layers": 2, "batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "batch_first": True},
        {"num_layers": 2, "has_states": False},
    ],
)
def test_one_way_to_read_the_call_gives_the_recorded_output(kind, settings):
    inputs, output = record_layers(kind, **settings)
    interpretations = compute_interpretations(kind, inputs, output_shape=output.shape)
    distances = sorted(compute_relative_distance(array, output) for _, array in interpretations)
    assert distances[0] < 3e-7
    assert all(distance > 0.05 for distance in distances[1:])


def test_one_step_of_a_cell():
    torch.manual_seed(3)
    cell = torch.nn.LSTMCell(5, 6)
    x, hidden, state = torch.randn(3, 5), torch.randn(3, 6), torch.randn(3, 6)
    output, _ = cell(x, (hidden, state))
    inputs = [t.detach().numpy() for t in (x, hidden, state, *cell.parameters())]
    ((name, computed),) = compute_interpretations("lstm", inputs, output_shape=(3, 6))
    assert name == "one step"
    assert compute_relative_distance(computed, output.detach().numpy()) < 3e-7


def test_all_weights_of_a_layer_in_one_tensor_with_one_bias():
    (x, hidden, cell, *weights), output = record_layers("lstm")
    matrices, (first_bias, second_bias) = weights[:2], weights[2:]
    flat = np.concatenate([*(matrix.ravel() for matrix in matrices), first_bias + second_bias])
    inputs = [x, hidden, cell, flat.reshape(-1, 1, 1)]
    ((_, computed),) = compute_interpretations("lstm", inputs, output_shape=output.shape)
    assert compute_relative_distance(computed, output) < 3e-7


def test_tensors_of_another_operator_are_no_recurrence():
    (x, hidden, cell, *weights), output = record_layers("lstm")
    call = make_call("lstm", [x, hidden, cell, weights[1], weights[0]], {}, output.shape)
    assert list(list_recurrences(call)) == []
