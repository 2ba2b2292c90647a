"""Faults and cases of the recommender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.recsys.architecture import BATCH, CROSS_LAYERS, DECAY, RATE, Model


def exchange_factors(model: Model) -> Model:
    """Return the model with the last cross layer's matrices, transposed, in each other's place."""
    v, u = (f"cross.{CROSS_LAYERS - 1}.{name}.weight" for name in "vu")
    exchanged = {
        v: np.ascontiguousarray(model.weights[u].T),
        u: np.ascontiguousarray(model.weights[v].T),
    }
    return replace(model, weights={**model.weights, **exchanged})


def exchange_gates(model: Model) -> Model:
    """Return the model with the rows of the GRU's reset and update gate in each other's place."""
    weights = dict(model.weights)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        reset, update, candidate = np.split(model.weights[f"gru.{name}"], 3)
        weights[f"gru.{name}"] = np.concatenate([update, reset, candidate])
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "bias_outside": Fault(
        "the bias of the last cross layer is added behind the product with the first vector, as in "
        "the network's first version",
        "layer-order",
        change_model(is_bias_crossed=False),
        equivalents=(
            "residual-order",
            "input-source",
            "missing-step",
            "missing-term",
            "bias-missing",
            "constant-offset",
        ),
    ),
    "dense_variance": Fault(
        "dense features are divided by the variance that the scaler saved, not by its root",
        "missing-step",
        change_model(is_variance_rooted=False),
        lambda *_: [Anywhere("(?i)sqrt|root|square|varian|deviation")],
        equivalents=("scale", "constant-factor", "input-source", "argument"),
    ),
    "hidden_bias": Fault(
        "the GRU's two biases are one, so that the reset gate does not multiply the state's",
        "cell-form",
        change_model(is_hidden_bias_reset=False),
        equivalents=(
            "layer-order",
            "input-source",
            "missing-step",
            "missing-term",
            "bias-missing",
            "constant-offset",
        ),
    ),
    "padding_zero": Fault(
        "scores of padding are multiplied by the mask, so that softmax still gives it a share",
        "mask-fill",
        change_model(is_padding_filled=False),
        equivalents=("mask-kind", "mask-missing"),
    ),
    "dice_reversed": Fault(
        "dice takes its gate for the share of the slope, not of the identity",
        "input-order",
        change_model(is_dice_reversed=True),
        equivalents=("activation-kind", "gate-order", "gate-up-swapped", "input-source"),
    ),
    "slopes_initial": Fault(
        "the slopes of prelu were not loaded: all are the framework's 0.25",
        "zeroed",
        change_weight("deep.0.slopes", lambda slopes: np.full_like(slopes, 0.25)),
        lambda *_: [Anywhere(r"\b0?\.25\b")],
    ),
    "factors_exchanged": Fault(
        "the two matrices of the last cross layer, stored for x times them, are loaded into each "
        "other's place, where their shapes fit",
        "weight-swapped",
        exchange_factors,
        equivalents=("weight-transposed", "axes-swapped"),
    ),
    "logq_divided": Fault(
        "the correction by the items' popularity is subtracted before the temperature divides",
        "layer-order",
        change_model(is_logq_divided=True),
        equivalents=("constant-factor", "scale", "input-source", "missing-step"),
    ),
    "copies_kept": Fault(
        "an example's own item counts as a negative where another example has it too",
        "mask-missing",
        change_model(are_copies_masked=False),
        equivalents=("missing-step", "mask-kind", "mask-fill"),
    ),
    "interest_attached": Fault(
        "the loss of the towers reaches the interest, whose detach is missing",
        "gradient-stopped",
        change_model(is_interest_stopped=False),
    ),
    "frequency_gradient": Fault(
        "the gradient of an item is divided by how often a lookup has it, an option of embeddings",
        "gradient-scaled",
        change_model(is_gradient_by_frequency=True),
        equivalents=("argument",),
    ),
    "decay_unscaled": Fault(
        "weights decay without the learning rate: by 0.01 in each step",
        "weight-decay",
        change_optimizer(weight_decay=DECAY / RATE),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        equivalents=("update-rule",),
        optimizer=True,
    ),
    "gates_exchanged": Fault(
        "the GRU's weights are loaded as Keras stores them, with the update gate before the reset "
        "gate",
        "gate-order",
        exchange_gates,
        lambda *_: [Anywhere("(?i)gate|order|block|exchang|swap|row")],
        equivalents=("split-order", "weight-rows", "weight-swapped", "heads-permuted"),
    ),
    "mean_weighted": Fault(
        "the weighted losses of clicks are divided by the sum of the weights, a weighted mean, not "
        "by the batch",
        "loss-reduction",
        change_model(is_mean_weighted=True),
        lambda _, clean: [Ratio(BATCH / float(clean.batch()[5].sum()))],
        equivalents=("constant-factor", "scale", "loss-weight", "pooling", "argument"),
    ),
    "histories_last": Fault(
        "histories were padded by Keras, whose default is in front, not behind",
        "batch",
        change_model(are_histories_last=True),
        equivalents=("padding-mode", "row-shift", "input-order", "position-offset", "input-source"),
    ),
    "gradient_overwritten": Fault(
        "the own backward pass of a lookup adds gradients to rows by an index, which does not sum: "
        "of an item that a history or several ones have more than once, the last gradient is kept",
        "gradient-stopped",
        change_model(is_gradient_overwritten=True),
        equivalents=("missing-term", "gradient-scaled", "update-missing"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("bias_outside", "pytorch"),
    ("dense_variance", "mindspore"),
    ("hidden_bias", "mindspore"),
    ("padding_zero", "pytorch"),
    ("dice_reversed", "pytorch"),
    ("slopes_initial", "mindspore"),
    ("factors_exchanged", "pytorch"),
    ("logq_divided", "mindspore"),
    ("copies_kept", "mindspore"),
    ("interest_attached", "pytorch"),
    ("frequency_gradient", "pytorch"),
    ("decay_unscaled", "mindspore"),
    ("gates_exchanged", "mindspore"),
    ("mean_weighted", "pytorch"),
    ("histories_last", "mindspore"),
    ("gradient_overwritten", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "written": ("", "written"),
    "factored": ("", "factored"),
    "mint": ("mint", ""),
    "reductions": ("reductions", ""),
}
