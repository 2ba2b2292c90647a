"""Recurrent layers in float64: LSTM, GRU and plain RNN, as one operator or as one step of a cell.

Weights are laid out as PyTorch and ``mindspore.nn`` store them: rows gate by gate, i f g o of an
LSTM and r z n of a GRU (https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html). An
operator that takes all weights of a layer in one tensor has the two matrices first, then one bias
or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

#: Kind -> number of gates, whose rows a weight holds.
GATE_COUNTS: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn": 1}
#: Kind -> number of tensors that are carried from step to step.
STATE_COUNTS: Mapping[str, int] = {"lstm": 2, "gru": 1, "rnn": 1}
#: Layouts of a sequence: (batch, steps, size), (steps, batch, size), or (batch, size) of a cell.
BATCH_FIRST, STEPS_FIRST, ONE_STEP = "batch first", "steps first", "one step"


def _sigmoid(x: AnyArray) -> Floats:
    result: Floats = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result


#: Activations of gates and of candidate states. The hard sigmoids are Keras's and PyTorch's.
CELL_ACTIVATIONS: Mapping[str, Callable[[AnyArray], Floats]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "hard sigmoid, clip(0.2 x + 0.5, 0, 1)": lambda x: np.clip(0.2 * x + 0.5, 0.0, 1.0),
    "hard sigmoid, clip(x / 6 + 0.5, 0, 1)": lambda x: np.clip(x / 6 + 0.5, 0.0, 1.0),
    "hard tanh": lambda x: np.clip(x, -1.0, 1.0),
    "identity": lambda x: x.astype(np.float64),
}


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Weights of one direction of one layer; a missing bias is zeros."""

    input_matrix: AnyArray  #: (gates * hidden, inputs)
    state_matrix: AnyArray  #: (gates * hidden, hidden)
    input_bias: AnyArray
    state_bias: AnyArray


@dataclass(frozen=True)
class CellForm:
    """How a cell computes; the defaults are those of PyTorch."""

    gate_order: tuple[int, ...] = ()  #: which block of rows is read as each gate; () for 0, 1, ...
    gate_offset: tuple[float, ...] = ()  #: added to each gate before its activation; () for none
    gate_activation: str = "sigmoid"
    candidate_activation: str = "tanh"  #: of the new content: g of an LSTM, n of a GRU
    output_activation: str = "tanh"  #: of the cell state of an LSTM
    #: of a GRU: the state is multiplied by the reset gate before its product with the weights
    is_reset_first: bool = False
    #: of a GRU: the update gate weights the new content, in place of the old state
    is_update_of_content: bool = False
    #: whether each state is carried from step to step; otherwise every step begins with zeros. ()
    #: for all
    carried_states: tuple[bool, ...] = ()
    output_state: int = 0  #: the state that is the output of a step: h, or 1 for c of an LSTM


@dataclass(frozen=True)
class Direction:
    """The order in which a direction reads the steps, and the places of its outputs."""

    is_backward: bool = False  #: it reads the steps from the last to the first
    #: each output is at the place of the step that was read; otherwise they are in the order in
    #: which they were computed
    is_restored: bool = True


#: Number of directions -> how each of them reads a sequence.
_DIRECTIONS: Mapping[int, tuple[Direction, ...]] = {
    1: (Direction(),),
    2: (Direction(), Direction(is_backward=True)),
}


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A call of a recurrent operator: what it reads, and how each layer computes."""

    kind: str
    x: AnyArray  #: (steps, batch, inputs)
    states: tuple[AnyArray, ...]  #: each (layers * directions, batch, hidden): h, and c of an LSTM
    layers: tuple[LayerWeights, ...]  #: layer by layer, the two directions next to each other
    directions: tuple[Direction, ...]  #: of each layer
    forms: tuple[CellForm, ...]  #: one for each of ``layers``
    layout: str  #: of the recorded tensors: 'batch first', 'steps first' or 'one step'
    has_states: bool = True  #: the states were given; otherwise they are zeros
    is_last_direction_first: bool = False  #: in the outputs that are joined

    @property
    def n_directions(self) -> int:
        """Directions of each layer: one or two."""
        return len(self.directions)

    @property
    def n_products(self) -> int:
        """Multiplications of all matrix products."""
        steps, batch = self.x.shape[:2]
        n_weights = sum(item.input_matrix.size + item.state_matrix.size for item in self.layers)
        return steps * batch * n_weights

    def compute(self) -> Floats:
        """Return the output of the last layer at all steps, in the layout of the record."""
        x: Floats = self.x.astype(np.float64)
        for first in range(0, len(self.layers), self.n_directions):
            outputs = []
            for number, direction in enumerate(self.directions, first):
                outputs.append(self._compute_direction(x, number, direction))
            if self.is_last_direction_first:
                outputs.reverse()
            x = np.concatenate(outputs, axis=-1)
        return x[0] if self.layout == ONE_STEP else split_steps(x, self.layout)

    def _compute_direction(self, x: Floats, number: int, direction: Direction) -> Floats:
        weights, form = self.layers[number], self.forms[number]
        states = tuple(state[number].astype(np.float64) for state in self.states)
        projected = x @ weights.input_matrix.T + weights.input_bias
        n_steps = len(x)
        outputs = np.empty((n_steps, *states[0].shape))
        steps = range(n_steps)[::-1] if direction.is_backward else range(n_steps)
        places = steps if direction.is_restored else range(n_steps)
        for step, place in zip(steps, places, strict=True):
            states = _STEPS[self.kind](projected[step], states, weights, form)
            outputs[place] = states[form.output_state]
            if form.carried_states:
                states = tuple(
                    state * is_carried
                    for state, is_carried in zip(states, form.carried_states, strict=True)
                )
        return outputs


def _split_gates(array: AnyArray, n_gates: int, form: CellForm) -> list[Floats]:
    """Return the rows of each gate, with what is added to it."""
    blocks = np.split(array, n_gates, axis=-1)
    gates = [blocks[block] for block in form.gate_order or range(n_gates)]
    if form.gate_offset:
        gates = [gate + offset for gate, offset in zip(gates, form.gate_offset, strict=True)]
    return gates


def _step_lstm(
    projected: Floats, states: tuple[Floats, ...], weights: LayerWeights, form: CellForm
) -> tuple[Floats, ...]:
    hidden, cell = states
    total = projected + hidden @ weights.state_matrix.T + weights.state_bias
    i, f, g, o = _split_gates(total, 4, form)
    gate = CELL_ACTIVATIONS[form.gate_activation]
    content = CELL_ACTIVATIONS[form.candidate_activation](g)
    cell = gate(f) * cell + gate(i) * content
    return gate(o) * CELL_ACTIVATIONS[form.output_activation](cell), cell


def _step_gru(
    projected: Floats, states: tuple[Floats, ...], weights: LayerWeights, form: CellForm
) -> tuple[Floats, ...]:
    (hidden,) = states
    gate = CELL_ACTIVATIONS[form.gate_activation]
    r_x, z_x, n_x = _split_gates(projected, 3, form)
    plain_form = replace(form, gate_offset=())
    from_state = hidden @ weights.state_matrix.T + weights.state_bias
    r_h, z_h, n_h = _split_gates(from_state, 3, plain_form)
    reset, update = gate(r_x + r_h), gate(z_x + z_h)
    content_from_state = reset * n_h
    if form.is_reset_first:
        from_reset_state = (reset * hidden) @ weights.state_matrix.T + weights.state_bias
        content_from_state = _split_gates(from_reset_state, 3, plain_form)[2]
    content = CELL_ACTIVATIONS[form.candidate_activation](n_x + content_from_state)
    if form.is_update_of_content:
        update = 1 - update
    return ((1 - update) * content + update * hidden,)


def _step_rnn(
    projected: Floats, states: tuple[Floats, ...], weights: LayerWeights, form: CellForm
) -> tuple[Floats, ...]:
    (hidden,) = states
    total = projected + hidden @ weights.state_matrix.T + weights.state_bias
    (content,) = _split_gates(total, 1, form)
    return (CELL_ACTIVATIONS[form.candidate_activation](content),)


#: Number of axes of the input -> layouts that it may have.
_LAYOUTS_OF_AXES: Mapping[int, tuple[str, ...]] = {
    2: (ONE_STEP,),
    3: (BATCH_FIRST, STEPS_FIRST),
}
_STEPS: Mapping[
    str,
    Callable[[Floats, tuple[Floats, ...], LayerWeights, CellForm], tuple[Floats, ...]],
] = {"lstm": _step_lstm, "gru": _step_gru, "rnn": _step_rnn}

#: Kind -> forms that the frameworks' operators have: name of the interpretation, form.
_FORMS: Mapping[str, tuple[tuple[str, CellForm], ...]] = {
    "lstm": (("", CellForm()),),
    "gru": (
        ("", CellForm()),
        ("reset before the product", CellForm(is_reset_first=True)),
    ),
    "rnn": (("tanh", CellForm()), ("relu", CellForm(candidate_activation="relu"))),
}


def list_recurrences(call: Call) -> Iterator[tuple[str, Recurrence]]:
    """Yield (name, recurrence) of every way to read a call.

    Whether the batch or the steps come first is not recorded, so both are tried if both fit.
    Nothing is yielded if the tensors are not those of a recurrent operator.
    """
    if call.kind not in GATE_COUNTS or not call.tensors or call.output_shape is None:
        return
    x, *others = call.tensors
    for n_states in (STATE_COUNTS[call.kind], 0):
        states, weights = others[:n_states], others[n_states:]
        layers = _read_layers(call.kind, x.shape[-1], weights, call.output_shape[-1])
        if not layers or len(states) < n_states:
            continue
        width = layers[0].state_matrix.shape[1]
        for layout in _LAYOUTS_OF_AXES.get(x.ndim, ()):
            steps = split_steps(x, layout)
            shape = (len(layers), steps.shape[1], width)
            if any(state.shape not in (shape, shape[1:]) for state in states):
                continue
            used_states = [state.reshape(shape) for state in states]
            if not used_states:
                used_states = [np.zeros(shape)] * STATE_COUNTS[call.kind]
            for form_name, form in _FORMS[call.kind]:
                yield (
                    ", ".join(part for part in (layout, form_name) if part),
                    Recurrence(
                        call.kind,
                        steps,
                        tuple(used_states),
                        layers,
                        _DIRECTIONS[call.output_shape[-1] // width],
                        (form,) * len(layers),
                        layout,
                        has_states=n_states > 0,
                    ),
                )
        return


def split_steps(array: AnyArray, layout: str) -> AnyArray:
    """Return an array with the steps first, or one with the steps first in ``layout``."""
    if layout == ONE_STEP:
        return array[None]
    return np.swapaxes(array, 0, 1) if layout == BATCH_FIRST else array


def _read_layers(
    kind: str, n_inputs: int, tensors: Sequence[AnyArray], n_outputs: int
) -> tuple[LayerWeights, ...]:
    """Return the weights layer by layer; () if the tensors are not those of such layers."""
    n_gates = GATE_COUNTS[kind]
    if len(tensors) == 1 and tensors[0].size == max(tensors[0].shape, default=0):
        return _read_flat_layer(n_gates, n_inputs, tensors[0].reshape(-1), n_outputs)
    layers = _group_weights(n_gates, tensors)
    if not layers:
        return ()
    n_directions, remainder = divmod(n_outputs, layers[0].state_matrix.shape[1])
    if n_directions not in (1, 2) or remainder or len(layers) % n_directions:
        return ()
    for number, layer in enumerate(layers):
        expected_width = n_inputs if number < n_directions else n_outputs
        if layer.input_matrix.shape[1] != expected_width:
            return ()
    return layers


def _group_weights(n_gates: int, tensors: Sequence[AnyArray]) -> tuple[LayerWeights, ...]:
    """Return the weights layer by layer: two matrices each, then two biases or none."""
    layers: list[LayerWeights] = []
    rest = list(tensors)
    while rest:
        matrices, rest = rest[:2], rest[2:]
        if len(matrices) < 2 or any(matrix.ndim != 2 for matrix in matrices):
            return ()
        n_rows, width = matrices[1].shape
        if n_rows != n_gates * width or len(matrices[0]) != n_rows:
            return ()
        biases = [np.zeros(n_rows), np.zeros(n_rows)]
        if len(rest) > 1 and rest[0].shape == rest[1].shape == (n_rows,):
            biases, rest = rest[:2], rest[2:]
        layers.append(LayerWeights(matrices[0], matrices[1], biases[0], biases[1]))
    return tuple(layers)


def _read_flat_layer(
    n_gates: int, n_inputs: int, flat: AnyArray, width: int
) -> tuple[LayerWeights, ...]:
    """Return the one layer whose weights a flat tensor holds: matrices, then one bias or two."""
    n_rows = n_gates * width
    n_matrices = n_rows * (n_inputs + width)
    if flat.size - n_matrices not in (0, n_rows, 2 * n_rows):
        return ()
    biases = np.zeros(2 * n_rows)
    biases[: flat.size - n_matrices] = flat[n_matrices:]
    return (
        LayerWeights(
            flat[: n_rows * n_inputs].reshape(n_rows, n_inputs),
            flat[n_rows * n_inputs : n_matrices].reshape(n_rows, width),
            biases[:n_rows],
            biases[n_rows:],
        ),
    )


def compute_recurrence(call: Call) -> Interpretations:
    """Compute the outputs of all steps from x, the initial states and the weights."""
    for name, recurrence in list_recurrences(call):
        yield name, recurrence.compute()


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = dict.fromkeys(
    GATE_COUNTS, compute_recurrence
)
