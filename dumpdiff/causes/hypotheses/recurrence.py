"""Recurrent layers that are one operator on one side: the operator, computed with one change.

The other side may have unrolled the layers into hundreds of operators, or changed how it calls the
same operator. The first steps alone rule out most changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TypeAlias

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...operators import Call
from ...operators.recurrence import (
    GATE_COUNTS,
    LayerWeights,
    Recurrence,
    list_recurrences,
    split_steps,
)
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_number

#: Multiplications of one run of the layers; more take seconds.
_MAX_PRODUCTS = 1e9
#: Steps that are computed first. Two: the first one may begin with a state of zeros.
_FIRST_STEPS = 2
#: Residual of the first steps beyond which a change is ruled out, in limits of the case.
_FIRST_STEP_LIMITS = 10
_GATE_NAMES = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "z", "n"), "rnn": ("the state",)}
_FORGET_GATE = 1
_STATE_NAMES = ("hidden state", "cell state")
_WEIGHT_NAMES = {
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


_SetOffset: TypeAlias = Callable[[float, Recurrence], Recurrence]


@dataclass(frozen=True, eq=False)
class _Change:
    """Another recurrence, and what it means."""

    recurrence: Recurrence
    cause: str
    description: str
    contrast: str = ""

    def make_candidate(self, predicted: AnyArray, unchanged: AnyArray) -> Candidate:
        """Return the candidate that predicts the faulty side's value."""
        return Candidate(
            predicted, self.description, self.contrast, unchanged=unchanged, cause=self.cause
        )


def suggest_changed_operator(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the faulty side computes the faithful side's operator with one change."""
    recurrence = _find_recurrence(case.call, case.faithful, case.limit)
    if recurrence is None:
        return
    unchanged = recurrence.compute().reshape(case.faithful.shape)
    for change in _list_changes(case, recurrence):
        predicted = _run_change(change, case.faulty, case.limit)
        if predicted is not None:
            yield change.make_candidate(predicted, unchanged)


def suggest_changed_call(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the faulty side's own operator was called with something else.

    That is visible in its record: no first state, or one weight in two layers. With what the
    faithful side has in its place, the operator gives the faithful side's value.
    """
    recurrence = _find_recurrence(case.faulty_call, case.faulty, case.limit)
    if recurrence is None:
        return
    predicted = recurrence.compute().reshape(case.faulty.shape)
    for change in _list_corrections(case, recurrence):
        unchanged = _run_change(change, case.faithful, case.limit)
        if unchanged is not None:
            yield change.make_candidate(predicted, unchanged)


def _find_recurrence(call: Call | None, value: Floats, limit: float) -> Recurrence | None:
    """Return the recurrence whose output is ``value``; None if the call has none."""
    if call is None or call.kind not in GATE_COUNTS:
        return None
    for _, recurrence in list_recurrences(call):
        if recurrence.n_products > _MAX_PRODUCTS:
            return None
        if compute_residual(recurrence.compute(), value) <= limit:
            return recurrence
    return None


def _run_change(change: _Change, value: Floats, limit: float) -> AnyArray | None:
    """Return the output with a change; None if the first steps already differ from ``value``."""
    if not _explains_first_steps(change.recurrence, value, limit):
        return None
    return change.recurrence.compute().reshape(value.shape)


def _explains_first_steps(recurrence: Recurrence, value: Floats, limit: float) -> bool:
    """Return whether the first steps are near those of ``value``, if they can be told apart."""
    first_steps = _take_first_steps(recurrence)
    if first_steps is None:
        return True
    expected = _take_first_values(recurrence, value)
    return compute_residual(first_steps.compute(), expected) <= _FIRST_STEP_LIMITS * limit


def _take_first_steps(recurrence: Recurrence) -> Recurrence | None:
    """Return the recurrence of the first steps; None if they need the last ones."""
    is_one_way = recurrence.n_directions == 1 and not recurrence.is_reversed
    if not is_one_way or len(recurrence.x) <= _FIRST_STEPS:
        return None
    return replace(recurrence, x=recurrence.x[:_FIRST_STEPS])


def _take_first_values(recurrence: Recurrence, value: Floats) -> Floats:
    """Return the part of an output that belongs to the first steps, in its layout."""
    n_steps, batch = recurrence.x.shape[:2]
    shape = (n_steps, batch, -1)
    if recurrence.layout == "batch first":
        shape = (batch, n_steps, -1)
    steps = split_steps(value.reshape(shape), recurrence.layout)[:_FIRST_STEPS]
    first_values: Floats = split_steps(steps, recurrence.layout)
    return first_values


# ---- changes


def _list_changes(case: FaultCase, recurrence: Recurrence) -> Iterator[_Change]:
    yield from _list_states(recurrence)
    yield from _list_missing_biases(recurrence)
    yield from _list_gate_orders(recurrence)
    yield from _list_gate_offsets(case, recurrence)
    yield from _list_forms(recurrence)
    yield from _list_weights(recurrence)
    if recurrence.n_directions == 1:
        yield _Change(
            replace(recurrence, is_reversed=True),
            "scan-direction",
            "the sequence read in reverse, from its end",
            "reads it from its start",
        )


def _list_states(recurrence: Recurrence) -> Iterator[_Change]:
    """Take the first state as zeros, exchange states or layers, or carry no state."""
    states = recurrence.states
    names = _STATE_NAMES[: len(states)]
    groups: list[tuple[int, ...]] = [tuple(range(len(states)))]
    if len(states) > 1:
        groups += [(number,) for number in range(len(states))]
    for group in groups:
        if recurrence.has_states:
            reset_states = tuple(
                np.zeros_like(state) if number in group else state
                for number, state in enumerate(states)
            )
            words = "state" if len(group) == len(states) else names[group[0]]
            yield _Change(
                replace(recurrence, states=reset_states),
                "hidden-state-reset",
                f"an initial {words} of zeros",
                f"begins with the {words} that it is given",
            )
        carried = tuple(number not in group for number in range(len(states)))
        words = "state" if len(group) == len(states) else names[group[0]]
        yield _Change(
            _replace_forms(recurrence, None, carried_states=carried),
            "hidden-state-reset",
            f"a {words} of zeros at every step",
            f"carries the {words} from step to step",
        )
    if len(states) > 1 and recurrence.has_states:
        yield _Change(
            replace(recurrence, states=states[::-1]),
            "input-order",
            "the initial hidden state and cell state exchanged",
        )
    if len(recurrence.layers) > 1 and recurrence.has_states:
        yield _Change(
            replace(recurrence, states=tuple(state[::-1] for state in states)),
            "input-order",
            "the initial states of the layers in the other order",
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


def _list_missing_biases(recurrence: Recurrence) -> Iterator[_Change]:
    groups = (("state_bias",), ("input_bias",), ("input_bias", "state_bias"))
    for layer, words in _list_scopes(recurrence):
        for group in groups:

            def drop(weights: LayerWeights, group: Sequence[str] = group) -> LayerWeights:
                zeros = {name: np.zeros_like(getattr(weights, name)) for name in group}
                return replace(weights, **zeros)

            names = " and ".join(_WEIGHT_NAMES[name] for name in group)
            yield _Change(
                _replace_weights(recurrence, layer, drop),
                "bias-missing",
                f"without its bias ({names}{words})",
            )


def _list_gate_orders(recurrence: Recurrence) -> Iterator[_Change]:
    """Read the rows of the weights as gates in another order."""
    names = _GATE_NAMES[recurrence.kind]
    own_order = list(range(len(names)))
    for layer, words in _list_scopes(recurrence):
        for order in permutations(own_order):
            if list(order) == own_order:
                continue
            # gate n is read from block order[n], so block order[n] has the name of gate n
            block_names = [names[order.index(block)] for block in own_order]
            yield _Change(
                _replace_forms(recurrence, layer, gate_order=order),
                "gate-order",
                f"gates in the order {', '.join(block_names)}{words}",
                f"reads {', '.join(names)}",
            )


def _list_gate_offsets(case: FaultCase, recurrence: Recurrence) -> Iterator[_Change]:
    """Add the best number to one gate before its activation."""
    names = _GATE_NAMES[recurrence.kind]
    first_steps = _take_first_steps(recurrence) or recurrence
    expected = _take_first_values(recurrence, case.faulty)
    for layer, words in _list_scopes(recurrence):
        for gate, name in enumerate(names):

            def set_offset(
                value: float, source: Recurrence, layer: int | None = layer, gate: int = gate
            ) -> Recurrence:
                offsets = [0.0] * len(names)
                offsets[gate] = value
                return _replace_forms(source, layer, gate_offset=tuple(offsets))

            def run(value: float, set_offset: _SetOffset = set_offset) -> Floats:
                return set_offset(value, first_steps).compute()

            offset = fit_number(run, 0.0, expected)
            if offset is None:
                continue
            is_forget_gate = recurrence.kind == "lstm" and gate == _FORGET_GATE
            text = f"{offset:.4g} added to the forget gate"
            if not is_forget_gate:
                text = f"{offset:.4g} added to the gate {name}"
            yield _Change(
                set_offset(offset, recurrence),
                "forget-bias" if is_forget_gate else "constant-offset",
                f"{text}{words}",
                "adds nothing",
            )


def _list_forms(recurrence: Recurrence) -> Iterator[_Change]:
    """Take other activations, and the other forms of a GRU."""
    own_form = recurrence.forms[0]
    if recurrence.kind == "gru":
        changed = _replace_forms(recurrence, None, is_reset_first=not own_form.is_reset_first)
        texts = ("the reset gate after the product", "the reset gate before the product")
        yield _Change(
            changed,
            "cell-form",
            texts[not own_form.is_reset_first],
            f"applies {texts[own_form.is_reset_first]}",
        )
        yield _Change(
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
                yield _Change(
                    _replace_forms(recurrence, layer, **{setting: name}),
                    "activation-kind",
                    f"{name} for {_ACTIVATION_PLACES[setting]}{words}",
                    f"has {own_name}",
                )


def _list_weights(recurrence: Recurrence) -> Iterator[_Change]:
    """Take a weight of another layer or direction, exchange layers, or transpose the gates."""
    layers = recurrence.layers
    for own, weights in enumerate(layers):
        for other, other_weights in enumerate(layers):
            if own == other:
                continue
            for attribute, name in _WEIGHT_NAMES.items():
                array, other_array = getattr(weights, attribute), getattr(other_weights, attribute)
                if array.shape != other_array.shape or np.array_equal(array, other_array):
                    continue
                changed_layers = list(layers)
                changed_layers[own] = replace(weights, **{attribute: other_array})
                places = [_describe_place(recurrence, number) for number in (own, other)]
                yield _Change(
                    replace(recurrence, layers=tuple(changed_layers)),
                    "weight-swapped",
                    f"{name} of {places[1]} in the place of that of {places[0]}",
                    f"has {name} of {places[0]}",
                )
            shapes = [item.input_matrix.shape for item in (weights, other_weights)]
            if own < other and shapes[0] == shapes[1]:
                changed_layers = list(layers)
                changed_layers[own], changed_layers[other] = other_weights, weights
                places = [_describe_place(recurrence, number) for number in (own, other)]
                yield _Change(
                    replace(recurrence, layers=tuple(changed_layers)),
                    "weight-swapped",
                    f"the weights of {places[0]} and {places[1]} exchanged",
                )
    for layer, words in _list_scopes(recurrence):
        yield _Change(
            _replace_weights(recurrence, layer, _transpose_gates),
            "weight-transposed",
            f"weight_hh{words} transposed, gate by gate",
        )


def _transpose_gates(weights: LayerWeights) -> LayerWeights:
    n_rows, width = weights.state_matrix.shape
    blocks = weights.state_matrix.reshape(n_rows // width, width, width)
    transposed = np.swapaxes(blocks, 1, 2).reshape(n_rows, width)
    return replace(weights, state_matrix=transposed)


def _describe_place(recurrence: Recurrence, number: int) -> str:
    """Return 'layer 1', or 'layer 1 backward' if there are two directions."""
    layer, direction = divmod(number, recurrence.n_directions)
    if recurrence.n_directions == 1:
        return f"layer {layer}"
    return f"layer {layer} {('forward', 'backward')[direction]}"


# ---- what the record of the faulty side shows


def _list_corrections(case: FaultCase, recurrence: Recurrence) -> Iterator[_Change]:
    yield from _list_given_states(case, recurrence)
    yield from _list_repeated_weights(case, recurrence)


def _list_given_states(case: FaultCase, recurrence: Recurrence) -> Iterator[_Change]:
    """Begin with states of this shape that the faithful side has."""
    if recurrence.has_states:
        return
    shape = recurrence.states[0].shape
    candidates = [
        operand
        for operand in (*case.operands, *case.find_other_values(shape))
        if operand.shape == shape and operand.is_floating and np.any(operand.array)
    ]
    for operands in permutations(candidates, len(recurrence.states)):
        if len({id(operand) for operand in operands}) < len(operands):
            continue
        yield _Change(
            replace(
                recurrence,
                states=tuple(operand.array for operand in operands),
                has_states=True,
            ),
            "hidden-state-reset",
            "an initial state of zeros",
            "begins with the state that it is given",
        )


def _list_repeated_weights(case: FaultCase, recurrence: Recurrence) -> Iterator[_Change]:
    """Take a parameter of the faithful side in place of a weight that is in two layers."""
    for own, weights in enumerate(recurrence.layers):
        for other, other_weights in enumerate(recurrence.layers):
            for attribute, name in _WEIGHT_NAMES.items():
                array = getattr(weights, attribute)
                is_repeated = np.array_equal(array, getattr(other_weights, attribute))
                if own == other or not is_repeated or not np.any(array):
                    continue
                place, other_place = (
                    _describe_place(recurrence, number) for number in (own, other)
                )
                for operand in case.find_parameters(array.size):
                    if operand.shape != array.shape or np.array_equal(operand.array, array):
                        continue
                    layers = list(recurrence.layers)
                    layers[own] = replace(weights, **{attribute: operand.array})
                    yield _Change(
                        replace(recurrence, layers=tuple(layers)),
                        "weight-swapped",
                        f"{name} of {other_place} in the place of that of {place}",
                        f"has {operand.parameter}",
                    )


HYPOTHESES = (
    Hypothesis("hidden-state-reset", suggest_changed_call),
    Hypothesis("hidden-state-reset", suggest_changed_operator),
)
