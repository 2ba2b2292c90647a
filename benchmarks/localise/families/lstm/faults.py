"""Faults of the LSTM language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from claims import Anywhere, Claim, Ratio, Shift, Values, Words

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.lstm.architecture import DROPOUT, LAYERS, SEED, SEQ, VOCAB, WIDTH, Model

LAST = LAYERS - 1
ADDED = 15  #: tokens at the end of a vocabulary that was resized
GRADIENT_LIMIT = 0.005  #: of what goes into a gate, for a mean over the tokens


def _take_first_layer(model: Model) -> Model:
    """Give the last layer the recurrent weight of the first one."""
    weight = model.weights["layers.0.weight_hh"]
    return replace(model, weights={**model.weights, f"layers.{LAST}.weight_hh": weight})


def _load_sum_twice(model: Model) -> Model:
    """Give both biases of the last layer the sum of the two."""
    names = [f"layers.{LAST}.bias_{name}" for name in ("ih", "hh")]
    total = model.weights[names[0]] + model.weights[names[1]]
    return replace(model, weights={**model.weights, **dict.fromkeys(names, total)})


def _transpose_gates(weight: np.ndarray) -> np.ndarray:
    """Transpose the square block of each gate."""
    return weight.reshape(4, WIDTH, WIDTH).swapaxes(1, 2).reshape(4 * WIDTH, WIDTH)


def _draw_added_rows(table: np.ndarray) -> np.ndarray:
    """Draw the rows of the last ADDED tokens again."""
    rng = np.random.default_rng(SEED + 2)
    table[VOCAB - ADDED :] = rng.standard_normal((ADDED, WIDTH))
    return table


def _claim(*patterns: str):
    def claim(faulty: Any, clean: Any) -> Sequence[Claim]:
        return [Anywhere(pattern) for pattern in patterns]

    return claim


FAULTS: Mapping[str, Fault] = {
    "gate_order": Fault(
        "the gates g and o are exchanged, as in frameworks that store i, f, o, g",
        "gate-order",
        change_model(gate_order=(0, 1, 3, 2)),
        _claim("gate"),
    ),
    "bias_missing": Fault(
        "one bias for input and state: the second one of the last layer is lost",
        "bias-missing",
        change_model(has_hidden_bias=False),
        _claim("bias"),
    ),
    "state_reset": Fault(
        "every batch begins with a state of zeros",
        "hidden-state-reset",
        change_model(is_state_carried=False),
        _claim("zero"),
    ),
    "forget_bias": Fault(
        "1 is added to the forget gate, as in TensorFlow's cell",
        "forget-bias",
        change_model(forget_bias=1.0),
        lambda faulty, clean: [Words(rf"\b{faulty.forget_bias:g}\b")],
    ),
    "hard_sigmoid": Fault(
        "Keras's hard sigmoid for the gates",
        "activation-kind",
        change_model(gate_activation="hard"),
        lambda faulty, clean: [Words("hard", "sigmoid")],
    ),
    "layer_weight": Fault(
        "the last layer has the recurrent weight of the first one",
        "weight-swapped",
        _take_first_layer,
        _claim("weight_hh"),
    ),
    "reversed": Fault(
        "the sequence is read from its end",
        "scan-direction",
        change_model(is_reversed=True),
        _claim("reverse"),
    ),
    "stopped_state": Fault(
        "no gradient flows through the state in the middle of the sequence",
        "gradient-stopped",
        change_model(detached_step=4),
    ),
    "padding_row": Fault(
        "row 0 of the embedding is declared padding and gets no gradient",
        "gradient-stopped",
        change_model(padding_row=0),
        _claim(r"\b0\b"),
    ),
    "dropout": Fault(
        "dropout between the layers left on",
        "dropout",
        change_model(dropout=DROPOUT),
        lambda faulty, clean: [Words(rf"p = {faulty.dropout:g}\b")],
    ),
    "embedding_shift": Fault(
        "rows of the embedding shifted by one, as by a token that only one vocabulary has",
        "row-shift",
        change_weight("embedding.weight", lambda table: np.roll(table, 1, axis=0)),
        lambda *_: [Shift(1)],
    ),
    "label_shift": Fault(
        "labels are the tokens themselves",
        "label-shift",
        change_model(label_shift=0),
        lambda faulty, clean: [Shift(clean.label_shift - faulty.label_shift)],
    ),
    "head_half": Fault(
        "the head in float16",
        "low-precision",
        change_model(is_head_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "loss_sequences": Fault(
        "the sum of the losses divided by the sequences, not by the tokens",
        "loss-reduction",
        change_model(loss_reduction="sequences"),
        lambda *_: [Ratio(SEQ)],
        row="8",
        equivalents=("constant-factor",),
    ),
    "embedding_scale": Fault(
        "embedded tokens times the root of their width, as in transformers",
        "constant-factor",
        change_model(embedding_scale=WIDTH**0.5),
        lambda faulty, clean: [Ratio(faulty.embedding_scale / clean.embedding_scale)],
        equivalents=("scale",),
    ),
    "embedding_gradient": Fault(
        "the gradient of the embedding is averaged over two ranks that hold a half each",
        "gradient-scaled",
        change_model(embedding_gradient=0.5),
        lambda faulty, clean: [Ratio(faulty.embedding_gradient / clean.embedding_gradient)],
        row="15",
    ),
    "states_exchanged": Fault(
        "hidden and cell state of the previous batch exchanged",
        "input-order",
        change_model(are_states_exchanged=True),
        equivalents=("input-source",),
    ),
    "cell_linear": Fault(
        "the output gate multiplies the cell state without its tanh, in the last layer",
        "missing-step",
        change_model(is_cell_activated=False),
        _claim("tanh"),
        equivalents=("activation-kind",),
    ),
    "ignored_label": Fault(
        "labels that are token 0 have no loss, as if it were padding",
        "ignore-index",
        change_model(ignored_label=0),
        equivalents=("loss-weight", "loss-reduction"),
    ),
    "clip": Fault(
        "gradients are clipped to a norm of 1, not of 0.25",
        "clip",
        lambda model: replace(model, optimizer=replace(model.optimizer, clip=1.0)),
        _claim("times|norm|clip"),
        optimizer=True,
        equivalents=("learning-rate", "gradient-norm"),
    ),
    "added_rows": Fault(
        "rows of tokens that were added to the vocabulary are not loaded into the embedding",
        "weight-rows",
        change_weight("embedding.weight", _draw_added_rows),
        _claim("row"),
        equivalents=("weight-swapped",),
    ),
    "label_smoothing": Fault(
        "labels are smoothed by 0.1",
        "label-smoothing",
        change_model(label_smoothing=0.1),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
    ),
    "summed_biases": Fault(
        "both biases of the last layer loaded from the one bias of a cell that has their sum",
        "bias-doubled",
        _load_sum_twice,
        _claim("bias"),
        equivalents=("weight-swapped", "weight-scaled", "constant-offset"),
    ),
    "decay": Fault(
        "matrices decay, in a recipe without weight decay",
        "weight-decay",
        change_optimizer(weight_decay=0.01),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "cell_clip": Fault(
        "the cell state of the last layer is clipped at 0.5, as by the option of TensorFlow's cell",
        "clamp",
        change_model(cell_limit=0.5),
        _claim(r"clamp|clip|limit|\b0\.5\b"),
        equivalents=("missing-step", "missing-term", "cell-form"),
    ),
    "gates_transposed": Fault(
        "the recurrent kernel of the last layer, stored for x times it, is split into gates and "
        "loaded as it is",
        "weight-transposed",
        change_weight(f"layers.{LAST}.weight_hh", _transpose_gates),
        _claim("transposed|axes|weight_hh"),
        equivalents=("axes-swapped", "weight-swapped"),
    ),
    "cells_read": Fault(
        "the head reads the cell states of the last layer: a library's pair of states has the cell "
        "first",
        "input-source",
        change_model(are_cells_read=True),
        equivalents=("cell-form", "input-order", "missing-step", "layer-order", "activation-kind"),
    ),
    "gradient_averaged": Fault(
        "the gradient of a row of the embedding is the mean over its tokens in the batch, not the "
        "sum: scale_grad_by_freq",
        "gradient-scaled",
        change_model(is_gradient_averaged=True),
        _claim("(?i)row|count|number|token|frequen|often|mean|divi"),
        equivalents=("pooling", "argument", "loss-reduction"),
    ),
    "logits_by_step": Fault(
        "logits are flattened step by step, as where steps come first, labels sequence by sequence",
        "axes-swapped",
        change_model(are_logits_by_step=True),
        _claim("(?i)transpos|ax[ei]s|order|flatten|shape|step|row"),
        equivalents=(
            "loss-target",
            "label-shift",
            "input-order",
            "input-source",
            "row-shift",
            "missing-step",
        ),
    ),
    "gates_clipped": Fault(
        "gradients of what goes into the gates of the last layer are clipped at every step, an "
        "option of older toolkits",
        "clamp",
        change_model(gradient_limit=GRADIENT_LIMIT),
        _claim(r"(?i)clamp|clip|limit|\b0\.005\b"),
        equivalents=("clip", "missing-step", "gradient-scaled", "gradient-stopped"),
    ),
    "hidden_stopped": Fault(
        "gradients of the last layer go back through its cell states only, not from the gates to "
        "the hidden state before, as in the first paper's truncation",
        "gradient-stopped",
        change_model(is_hidden_stopped=True),
        equivalents=("missing-term",),
    ),
    "states_reshaped": Fault(
        "states of the previous batch, saved as (batch, layers, width), are reshaped to (layers, "
        "batch, width), not transposed",
        "axes-swapped",
        change_model(are_states_reshaped=True),
        equivalents=("batch", "input-order", "row-shift", "heads-permuted", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("gate_order", "mindspore"),
    ("gate_order", "pytorch"),
    ("bias_missing", "mindspore"),
    ("state_reset", "mindspore"),
    ("state_reset", "pytorch"),
    ("forget_bias", "mindspore"),
    ("hard_sigmoid", "mindspore"),
    ("layer_weight", "pytorch"),
    ("reversed", "pytorch"),
    ("reversed", "mindspore"),
    ("stopped_state", "mindspore"),
    ("padding_row", "pytorch"),
    ("dropout", "pytorch"),
    ("embedding_shift", "mindspore"),
    ("label_shift", "pytorch"),
    ("head_half", "mindspore"),
    ("loss_sequences", "pytorch"),
    ("embedding_scale", "mindspore"),
    ("embedding_gradient", "mindspore"),
    ("states_exchanged", "pytorch"),
    ("cell_linear", "mindspore"),
    ("ignored_label", "pytorch"),
    ("clip", "mindspore"),
    ("added_rows", "mindspore"),
    ("label_smoothing", "pytorch"),
    ("summed_biases", "pytorch"),
    ("decay", "mindspore"),
    ("cell_clip", "mindspore"),
    ("gates_transposed", "pytorch"),
    ("cells_read", "mindspore"),
    ("gradient_averaged", "pytorch"),
    ("gates_clipped", "mindspore"),
    ("logits_by_step", "pytorch"),
    ("hidden_stopped", "mindspore"),
    ("states_reshaped", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "cells": ("", "cells"),
    "projected": ("projected", ""),
    "written": ("", "written"),
    "written_cells": ("projected", "cells"),
    "joined": ("joined", ""),
    "stacked": ("", "stacked"),
}
