"""Changes of a recurrent layer: another order of its steps or gates, other states or weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations

import numpy as np

from ...operators.recurrence import Direction, LayerWeights, Recurrence

_GATE_NAMES = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "z", "n"), "rnn": ("the state",)}
_FORGET_GATE = 1
_STATE_NAMES = ("hidden state", "cell state")
#: First states of layers and directions of which every order is tried.
_MAX_ORDERED_STATES = 4
WEIGHT_NAMES = {
    "input_matrix": "weight_ih",
    "state_matrix": "weight_hh",
    "input_bias": "bias_ih",
    "state_bias": "bias_hh",
}
_ACTIVATIONS = {
    "gate_activation": ("hard sigmoid, clip(0.2 x + 0.5, 0, 1)",
                        "hard sigmoid, clip(x / 6 + 0.5, 0, 1)", "tanh"),
    "candidate_activation": ("relu", "tanh", "sigmoid", "hard tanh", "identity"),
    "output_activation": ("identity", "relu", "sigmoid", "hard tanh"),
}  # fmt: skip
_ACTIVATION_PLACES = {
    "gate_activation": "the gates",
    "candidate_activation": "the new content",
    "output_activation": "the output",
}


@dataclass(frozen=True, eq=False)
class RecurrenceChange:
    """Another recurrence, and what it means."""

    recurrence: Recurrence
    cause: str
    description: str
    contrast: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FreeChange:
    """A change with a number that is solved for."""

    start: float  #: the number that changes nothing
    #: returns the change for a number, of the recurrence or of some of its steps
    apply: Callable[[float, Recurrence], RecurrenceChange]


def list_changes(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Yield every change that leaves no number open, the simplest first."""
    yield from _list_states(recurrence)
    yield from _list_directions(recurrence)
    yield from _list_missing_biases(recurrence)
    yield from _list_gate_orders(recurrence)
    yield from _list_forms(recurrence)
    yield from _list_weights(recurrence)


def list_free_changes(recurrence: Recurrence) -> Iterator[FreeChange]:
    """Yield the changes whose number is solved for: a factor, or what is added to a gate."""
    yield FreeChange(1.0, _scale_input)
    if recurrence.has_states:
        yield FreeChange(1.0, _scale_states)
    for layer, words in _list_scopes(recurrence):
        for gate, name in enumerate(_GATE_NAMES[recurrence.kind]):
            yield FreeChange(0.0, partial(_add_to_gate, gate, name, layer, words))


def _scale_input(factor: float, recurrence: Recurrence) -> RecurrenceChange:
    return RecurrenceChange(
        replace(recurrence, x=recurrence.x * factor),
        "constant-factor",
        f"a factor of {factor:.6g} of the sequence that the {recurrence.kind} reads",
        "has a factor of 1",
        {"factor": factor},
    )


def _scale_states(factor: float, recurrence: Recurrence) -> RecurrenceChange:
    states = tuple(state * factor for state in recurrence.states)
    return RecurrenceChange(
        replace(recurrence, states=states),
        "constant-factor",
        f"a factor of {factor:.6g} of the initial state of the {recurrence.kind}",
        "has a factor of 1",
        {"factor": factor},
    )


def _add_to_gate(
    gate: int, name: str, layer: int | None, words: str, offset: float, recurrence: Recurrence
) -> RecurrenceChange:
    offsets = [0.0] * len(_GATE_NAMES[recurrence.kind])
    offsets[gate] = offset
    is_forget_gate = recurrence.kind == "lstm" and gate == _FORGET_GATE
    addition = f"{offset:.4g} added to the forget gate"
    if not is_forget_gate:
        addition = f"{offset:.4g} added to the gate {name}"
    return RecurrenceChange(
        _replace_forms(recurrence, layer, gate_offset=tuple(offsets)),
        "forget-bias" if is_forget_gate else "constant-offset",
        addition + words,
        "adds nothing",
    )


def _list_directions(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Read the sequence from its other end, leave the outputs reversed, join them otherwise."""
    if recurrence.n_directions == 1:
        for is_restored, description in (
            (True, "the sequence read in reverse, from its end"),
            (False, "the sequence read in reverse, and its outputs not reversed back"),
        ):
            direction = Direction(is_backward=True, is_restored=is_restored)
            yield RecurrenceChange(
                replace(recurrence, directions=(direction,)),
                "scan-direction",
                description,
                "reads it from its start",
            )
        return
    forward, backward = recurrence.directions
    for directions, description, contrast in (
        (
            (forward, replace(backward, is_restored=False)),
            "the outputs of the backward direction not reversed back",
            "has each of them at its step",
        ),
        (
            (forward, forward),
            "both directions reading the sequence from its start",
            "reads it in reverse in the backward direction",
        ),
        (
            (backward, backward),
            "both directions reading the sequence from its end",
            "reads it from its start in the forward direction",
        ),
        (
            (backward, forward),
            "the directions exchanged: the first one reads the sequence from its end",
            "reads it from its start",
        ),
    ):
        changed = replace(recurrence, directions=directions)
        yield RecurrenceChange(changed, "scan-direction", description, contrast)
    yield RecurrenceChange(
        replace(recurrence, is_last_direction_first=True),
        "input-order",
        "the outputs of the two directions joined in the other order",
        "joins forward and backward",
    )


def _list_states(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Take first states as zeros or from other layers, or carry no state."""
    states = recurrence.states
    names = _STATE_NAMES[: len(states)]
    groups: list[tuple[int, ...]] = [tuple(range(len(states)))]
    if len(states) > 1:
        groups += [(number,) for number in range(len(states))]
    for group in groups:
        words = "state" if len(group) == len(states) else names[group[0]]
        if recurrence.has_states:
            yield RecurrenceChange(
                _reset_states(recurrence, group),
                "hidden-state-reset",
                f"an initial {words} of zeros",
                f"begins with the {words} that it is given",
            )
        carried = tuple(number not in group for number in range(len(states)))
        yield RecurrenceChange(
            _replace_forms(recurrence, None, carried_states=carried),
            "hidden-state-reset",
            f"a {words} of zeros at every step",
            f"carries the {words} from step to step",
        )
    if not recurrence.has_states:
        return
    if len(states) > 1:
        yield RecurrenceChange(
            replace(recurrence, states=states[::-1]),
            "input-order",
            "the initial hidden state and cell state exchanged",
        )
    if len(recurrence.layers) > 1:
        yield from _list_state_sources(recurrence)


def _reset_states(
    recurrence: Recurrence, group: Sequence[int], layer: int | None = None
) -> Recurrence:
    """Return the recurrence with zeros as some first states, of one layer or direction or all."""
    states = []
    for number, state in enumerate(recurrence.states):
        changed = state.copy()
        if number in group:
            changed[slice(None) if layer is None else layer] = 0.0
        states.append(changed)
    return replace(recurrence, states=tuple(states))


def _list_state_sources(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Begin layers and directions with the states of others, or one of them with zeros."""
    n_layers = len(recurrence.layers)
    places = [describe_place(recurrence, number) for number in range(n_layers)]
    own_order = tuple(range(n_layers))
    for layer in own_order:
        yield RecurrenceChange(
            _reset_states(recurrence, range(len(recurrence.states)), layer),
            "hidden-state-reset",
            f"an initial state of zeros in {places[layer]}",
            "begins with the state that it is given",
        )
    orders: list[tuple[int, ...]] = [(layer,) * n_layers for layer in own_order]
    if n_layers <= _MAX_ORDERED_STATES:
        orders += [order for order in permutations(own_order) if order != own_order]
    else:
        orders.append(own_order[::-1])
    for order in orders:
        states = tuple(state[list(order)] for state in recurrence.states)
        own_places, names = ", ".join(places), ", ".join(places[layer] for layer in order)
        yield RecurrenceChange(
            replace(recurrence, states=states),
            "input-order",
            f"{own_places} beginning with the states of {names}",
            "begins each of them with its own state",
        )


def _list_scopes(recurrence: Recurrence) -> list[tuple[int | None, str]]:
    """Return (layer, words): all layers, then each by itself."""
    n_layers = len(recurrence.layers) // recurrence.n_directions
    scopes: list[tuple[int | None, str]] = [(None, "")]
    if n_layers > 1:
        scopes += [(layer, f" of layer {layer}") for layer in range(n_layers)]
    return scopes


def _is_in_scope(recurrence: Recurrence, number: int, layer: int | None) -> bool:
    return layer is None or number // recurrence.n_directions == layer


def _replace_forms(recurrence: Recurrence, layer: int | None, **settings: object) -> Recurrence:
    """Return the recurrence with other forms of the cells of one layer, or of all."""
    forms = [
        replace(form, **settings) if _is_in_scope(recurrence, number, layer) else form  # type: ignore[arg-type]
        for number, form in enumerate(recurrence.forms)
    ]
    return replace(recurrence, forms=tuple(forms))


def _replace_weights(
    recurrence: Recurrence, layer: int | None, change: Callable[[LayerWeights], LayerWeights]
) -> Recurrence:
    """Return the recurrence with other weights of one layer, or of all."""
    layers = [
        change(weights) if _is_in_scope(recurrence, number, layer) else weights
        for number, weights in enumerate(recurrence.layers)
    ]
    return replace(recurrence, layers=tuple(layers))


def _list_missing_biases(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    groups = (("state_bias",), ("input_bias",), ("input_bias", "state_bias"))
    for layer, words in _list_scopes(recurrence):
        for group in groups:

            def drop(weights: LayerWeights, group: Sequence[str] = group) -> LayerWeights:
                zeros = {name: np.zeros_like(getattr(weights, name)) for name in group}
                return replace(weights, **zeros)

            names = " and ".join(WEIGHT_NAMES[name] for name in group)
            yield RecurrenceChange(
                _replace_weights(recurrence, layer, drop),
                "bias-missing",
                f"without its bias ({names}{words})",
            )


def _list_gate_orders(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Read the rows of the weights as gates in another order."""
    names = _GATE_NAMES[recurrence.kind]
    own_order = list(range(len(names)))
    for layer, words in _list_scopes(recurrence):
        for order in permutations(own_order):
            if list(order) == own_order:
                continue
            # gate n is read from block order[n], so block order[n] has the name of gate n
            block_names = [names[order.index(block)] for block in own_order]
            yield RecurrenceChange(
                _replace_forms(recurrence, layer, gate_order=order),
                "gate-order",
                f"gates in the order {', '.join(block_names)}{words}",
                f"reads {', '.join(names)}",
            )


def _list_forms(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Take other activations, the other forms of a GRU, and the cell states of an LSTM."""
    own_form = recurrence.forms[0]
    if recurrence.kind == "lstm":
        for layer, words in _list_scopes(recurrence):
            yield RecurrenceChange(
                _replace_forms(recurrence, layer, output_state=1),
                "cell-form",
                "the cell states read in place of the hidden states" + words,
                "reads the hidden states",
            )
    if recurrence.kind == "gru":
        changed = _replace_forms(recurrence, None, is_reset_first=not own_form.is_reset_first)
        texts = ("the reset gate after the product", "the reset gate before the product")
        yield RecurrenceChange(
            changed,
            "cell-form",
            texts[not own_form.is_reset_first],
            f"applies {texts[own_form.is_reset_first]}",
        )
        yield RecurrenceChange(
            _replace_forms(recurrence, None, is_update_of_content=True),
            "cell-form",
            "an update gate z that weights the new content: (1 - z) h + z n",
            "computes (1 - z) n + z h",
        )
    for setting, activations in _ACTIVATIONS.items():
        if recurrence.kind != "lstm" and setting == "output_activation":
            continue
        if recurrence.kind == "rnn" and setting == "gate_activation":
            continue
        own_name = getattr(own_form, setting)
        for name in activations:
            if name == own_name:
                continue
            for layer, words in _list_scopes(recurrence):
                yield RecurrenceChange(
                    _replace_forms(recurrence, layer, **{setting: name}),
                    "activation-kind",
                    f"{name} for {_ACTIVATION_PLACES[setting]}{words}",
                    f"has {own_name}",
                )


def _list_weights(recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Take a weight of another layer or direction, exchange layers, or transpose the gates."""
    layers = recurrence.layers
    for own, weights in enumerate(layers):
        for other, other_weights in enumerate(layers):
            if own == other:
                continue
            for attribute, name in WEIGHT_NAMES.items():
                array, other_array = getattr(weights, attribute), getattr(other_weights, attribute)
                if array.shape != other_array.shape or np.array_equal(array, other_array):
                    continue
                changed_layers = list(layers)
                changed_layers[own] = replace(weights, **{attribute: other_array})
                places = [describe_place(recurrence, number) for number in (own, other)]
                yield RecurrenceChange(
                    replace(recurrence, layers=tuple(changed_layers)),
                    "weight-swapped",
                    f"{name} of {places[1]} in the place of that of {places[0]}",
                    f"has {name} of {places[0]}",
                )
            shapes = [item.input_matrix.shape for item in (weights, other_weights)]
            if own < other and shapes[0] == shapes[1]:
                changed_layers = list(layers)
                changed_layers[own], changed_layers[other] = other_weights, weights
                places = [describe_place(recurrence, number) for number in (own, other)]
                yield RecurrenceChange(
                    replace(recurrence, layers=tuple(changed_layers)),
                    "weight-swapped",
                    f"the weights of {places[0]} and {places[1]} exchanged",
                )
    for layer, words in _list_scopes(recurrence):
        yield RecurrenceChange(
            _replace_weights(recurrence, layer, _transpose_gates),
            "weight-transposed",
            f"weight_hh{words} transposed, gate by gate",
        )


def _transpose_gates(weights: LayerWeights) -> LayerWeights:
    n_rows, width = weights.state_matrix.shape
    blocks = weights.state_matrix.reshape(n_rows // width, width, width)
    transposed = np.swapaxes(blocks, 1, 2).reshape(n_rows, width)
    return replace(weights, state_matrix=transposed)


def describe_place(recurrence: Recurrence, number: int) -> str:
    """Return 'layer 1', or 'layer 1 backward' if there are two directions."""
    layer, direction = divmod(number, recurrence.n_directions)
    if recurrence.n_directions == 1:
        return f"layer {layer}"
    return f"layer {layer} {('forward', 'backward')[direction]}"
