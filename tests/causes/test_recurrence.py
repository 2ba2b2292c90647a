"""Faults of recurrent layers that are one operator on one side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.operators.call import make_call
from dumpdiff.operators.recurrence import (
    CellForm,
    Direction,
    LayerWeights,
    Recurrence,
    list_recurrences,
)

from .fault_cases import make_fault_case, make_operand

STEPS, BATCH, WIDTH = 6, 3, 8
RNG = np.random.default_rng(5)
X = RNG.standard_normal((BATCH, STEPS, WIDTH))
STATES = [RNG.standard_normal((2, BATCH, WIDTH)) for _ in range(2)]


def make_weights(n_gates: int) -> list[np.ndarray]:
    """Return the weights of two layers, in the order in which PyTorch records them."""
    weights = []
    for _ in range(2):
        weights += [RNG.standard_normal((n_gates * WIDTH, WIDTH)) / 3 for _ in range(2)]
        weights += [RNG.standard_normal(n_gates * WIDTH) / 3 for _ in range(2)]
    return weights


def make_operator_call(kind="lstm", *, states=STATES, weights=None):
    n_gates = {"lstm": 4, "gru": 3}[kind]
    tensors = [X, *states, *(weights or make_weights(n_gates))]
    return make_call(kind, tensors, {}, X.shape)


def read_recurrence(call) -> Recurrence:
    return next(iter(list_recurrences(call)))[1]


def explain(call, faulty, faithful=None, **fields):
    """Return (faulty side, cause, sentence without place and residual)."""
    if faithful is None:
        faithful = read_recurrence(call).compute()
    case = replace(make_fault_case(faulty, faithful, {}, scope="rnn", call=call), **fields)
    search = search_causes([case], HYPOTHESES)
    side, causes = search.faulty_side, search.causes
    if not causes:
        return side, "", ""
    text = causes[0].text.removeprefix("rnn behaves as ").partition("; residual")[0]
    return side, causes[0].name, text


def change_forms(recurrence, layers=(0, 1), **settings):
    forms = [
        replace(form, **settings) if number in layers else form
        for number, form in enumerate(recurrence.forms)
    ]
    return replace(recurrence, forms=tuple(forms))


@pytest.mark.parametrize(
    ("settings", "layers", "cause", "sentence"),
    [
        (
            {"gate_order": (0, 1, 3, 2)},
            (0, 1),
            "gate-order",
            "gates in the order i, f, o, g; the reference reads i, f, g, o",
        ),
        (
            {"gate_order": (0, 2, 1, 3)},
            (1,),
            "gate-order",
            "gates in the order i, g, f, o of layer 1; the reference reads i, f, g, o",
        ),
        (
            {"gate_offset": (0.0, 1.0, 0.0, 0.0)},
            (0, 1),
            "forget-bias",
            "1 added to the forget gate; the reference adds nothing",
        ),
        (
            {"gate_activation": "hard sigmoid, clip(x / 6 + 0.5, 0, 1)"},
            (0, 1),
            "activation-kind",
            "hard sigmoid, clip(x / 6 + 0.5, 0, 1) for the gates; the reference has sigmoid",
        ),
        (
            {"carried_states": (False, False)},
            (0, 1),
            "hidden-state-reset",
            "a state of zeros at every step; the reference carries the state from step to step",
        ),
        (
            {"output_state": 1},
            (1,),
            "cell-form",
            "the cell states read in place of the hidden states of layer 1; the reference reads "
            "the hidden states",
        ),
    ],
)
def test_another_form_of_the_cell(settings, layers, cause, sentence):
    call = make_operator_call()
    changed = change_forms(read_recurrence(call), layers, **settings)
    assert explain(call, changed.compute())[1:] == (cause, sentence)


def test_initial_state_of_zeros():
    call = make_operator_call()
    zeros = tuple(np.zeros_like(state) for state in STATES)
    faulty = replace(read_recurrence(call), states=zeros).compute()
    assert explain(call, faulty)[1:] == (
        "hidden-state-reset",
        "an initial state of zeros; the reference begins with the state that it is given",
    )


def test_operator_without_a_state_while_the_other_side_has_one():
    """The faulty side is the one whose operator was called without a state."""
    weights = make_weights(4)
    faulty_call = make_operator_call(states=(), weights=weights)
    faithful = read_recurrence(make_operator_call(weights=weights)).compute()
    faulty = read_recurrence(faulty_call).compute()
    operands = tuple(
        make_operand(name, state) for name, state in zip(("hidden", "cell"), STATES, strict=True)
    )
    assert explain(
        None, faulty, faithful, faulty_call=faulty_call, find_other_values=lambda _: operands
    ) == (
        "target",
        "hidden-state-reset",
        "an initial state of zeros; the reference begins with the state that it is given",
    )


def test_one_bias_is_missing():
    call = make_operator_call()
    recurrence = read_recurrence(call)
    first, last = recurrence.layers
    last = replace(last, state_bias=np.zeros_like(last.state_bias))
    faulty = replace(recurrence, layers=(first, last)).compute()
    assert explain(call, faulty)[1:] == (
        "bias-missing",
        "without its bias (bias_hh of layer 1)",
    )


def test_weight_of_another_layer_on_the_faulty_side():
    weights = make_weights(4)
    wrong_weights = [*weights]
    wrong_weights[5] = weights[1]  # weight_hh of both layers
    faulty_call = make_operator_call(weights=wrong_weights)
    faulty = read_recurrence(faulty_call).compute()
    faithful = read_recurrence(make_operator_call(weights=weights)).compute()
    own_weights = [make_operand("cells.1.weight_hh.weight", weights[5])]
    assert explain(
        None, faulty, faithful, faulty_call=faulty_call, find_parameters=lambda _: own_weights
    )[1:] == (
        "weight-swapped",
        "weight_hh of layer 0 in the place of that of layer 1; the reference has "
        "cells.1.weight_hh.weight",
    )


def test_sequence_read_from_its_end():
    call = make_operator_call()
    faulty = replace(read_recurrence(call), directions=(Direction(is_backward=True),)).compute()
    assert explain(call, faulty)[1] == "scan-direction"


def test_gru_with_the_reset_gate_before_the_product():
    """As in Keras with ``reset_after=False`` and in ONNX with ``linear_before_reset=0``."""
    call = make_operator_call("gru", states=STATES[:1])
    faulty = change_forms(read_recurrence(call), is_reset_first=True).compute()
    assert explain(call, faulty)[1:] == (
        "cell-form",
        "the reset gate before the product; the reference applies the reset gate after the product",
    )


def test_gru_with_the_other_meaning_of_the_update_gate():
    call = make_operator_call("gru", states=STATES[:1])
    faulty = change_forms(read_recurrence(call), is_update_of_content=True).compute()
    assert explain(call, faulty)[1:] == (
        "cell-form",
        "an update gate z that weights the new content: (1 - z) h + z n; the reference computes "
        "(1 - z) n + z h",
    )


def test_random_output_has_no_cause():
    assert explain(make_operator_call(), RNG.standard_normal(X.shape))[1] == ""


def test_a_step_of_a_lstm_is_the_textbook_formula():
    """All weights 1, no bias, x = 0, h = 0, c = 2: c' = 2 s(0), h' = s(0) tanh(c')."""
    ones = LayerWeights(np.ones((4, 1)), np.ones((4, 1)), np.zeros(4), np.zeros(4))
    states = (np.zeros((1, 1, 1)), np.full((1, 1, 1), 2.0))
    recurrence = Recurrence(
        "lstm", np.zeros((1, 1, 1)), states, (ones,), (Direction(),), (CellForm(),), "steps first"
    )
    assert recurrence.compute().item() == pytest.approx(0.5 * np.tanh(1.0))
