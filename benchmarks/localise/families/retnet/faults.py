"""Faults of the language model of retention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer
from families.retnet.architecture import (
    HEADS,
    LAYERS,
    SMOOTHING,
    VOCAB,
    Model,
    get_cosine_rate,
)


def _reorder_for_halves(weight: np.ndarray) -> np.ndarray:
    """Return a projection whose pairs of rows are half a head apart, not next to each other."""
    pairs = weight.reshape(HEADS, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _reorder_projections(model: Model) -> Model:
    """Reorder the rows of all queries and keys."""
    names = [f"layers.{n}.retention.{name}.weight" for n in range(LAYERS) for name in "qk"]
    reordered = {name: _reorder_for_halves(model.weights[name]) for name in names}
    return replace(model, weights={**model.weights, **reordered})


def _exchange_gate_and_up(model: Model) -> Model:
    """Exchange the weights of the last feed-forward's gate and of what it multiplies."""
    gate, up = (f"layers.{LAYERS - 1}.mlp.{name}.weight" for name in ("gate", "up"))
    weights = model.weights
    return replace(model, weights={**weights, gate: weights[up], up: weights[gate]})


FAULTS: Mapping[str, Fault] = {
    "decays_spread": Fault(
        "exponents of the decays are equally spaced up to 9, as another library has them",
        "decay-exponent",
        change_model(are_decays_spread=True),
        equivalents=("relative-bias", "argument", "input-source"),
    ),
    "frequencies": Fault(
        "exponents of the frequencies are divided by half the width, as usual, not by one less",
        "rope-theta",
        change_model(has_last_frequency=False),
        lambda *_: [Anywhere(r"(?i)base|theta|frequenc|angle|\bsin|\bcos")],
        equivalents=("rope-scaling", "argument"),
    ),
    "one_group": Fault(
        "the result of retention has one norm, not one for each head",
        "norm-groups",
        change_model(norm_groups=1),
        lambda *_: [Anywhere(r"group|\b[14]\b|ax[ei]s")],
        equivalents=("norm-kind", "reduction-axis", "argument"),
    ),
    "gate_early": Fault(
        "the gate multiplies the result of retention before its norm",
        "layer-order",
        change_model(is_gate_early=True),
        equivalents=("input-source", "input-order"),
    ),
    "products_half": Fault(
        "products of the last layer's retention in float16",
        "low-precision",
        change_model(are_products_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "rows_for_halves": Fault(
        "the converter orders rows of queries and keys for a rotation of halves, which is of pairs",
        "heads-permuted",
        _reorder_projections,
        equivalents=("weight-rows", "rope-layout", "axes-swapped", "split-order"),
    ),
    "others_smoothed": Fault(
        "the smoothed share belongs to the other classes only, as in fairseq's loss",
        "label-smoothing",
        change_model(are_others_smoothed=True),
        lambda *_: [Values(SMOOTHING * VOCAB / (VOCAB - 1), SMOOTHING)],
        equivalents=("argument", "loss-target"),
    ),
    "sequences_averaged": Fault(
        "the loss is the mean of the means of sequences, not of all tokens",
        "loss-reduction",
        change_model(loss_reduction="sequences"),
        equivalents=("pooling", "loss-weight"),
    ),
    "scores_stopped": Fault(
        "the gradient is stopped behind the normalized scores, not at their divisor only",
        "gradient-stopped",
        change_model(are_scores_stopped=True),
    ),
    "embedding_gradient": Fault(
        "the embedding's gradient is a tenth, as GLM shrinks it for stability",
        "gradient-scaled",
        change_model(embedding_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.embedding_gradient / clean.embedding_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "cosine_rate": Fault(
        "the learning rate falls along a cosine, the framework's usual schedule, not along a line",
        "learning-rate",
        change_optimizer(learning_rate=get_cosine_rate()),
        lambda faulty, clean: [
            Ratio(faulty.optimizer.learning_rate / clean.optimizer.learning_rate)
        ],
        optimizer=True,
        equivalents=("constant-factor",),
    ),
    "decay_all": Fault(
        "weight decay of norms and biases too",
        "weight-decay",
        change_optimizer(decay_all=True),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, 0.0)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "loss_bits": Fault(
        "the loss is divided by the logarithm of two, as fairseq logs it",
        "constant-factor",
        change_model(loss_base=2.0),
        lambda *_: [Ratio(1 / math.log(2))],
        equivalents=("scale", "loss-weight", "loss-reduction", "missing-step"),
    ),
    "gate_by_name": Fault(
        "a checkpoint of TorchScale loaded by its names: what it calls gate is not activated",
        "gate-up-swapped",
        _exchange_gate_and_up,
        equivalents=("weight-swapped", "input-order", "input-source"),
    ),
    "deep_residual": Fault(
        "residuals are multiplied by (2 layers)^(1/4), the option deepnorm of TorchScale",
        "residual-scale",
        change_model(residual_scale=(2 * LAYERS) ** 0.25),
        lambda faulty, clean: [Ratio(faulty.residual_scale / clean.residual_scale)],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "head_norm_rms": Fault(
        "heads have an RMS norm, as in later versions of TorchScale, not a group norm",
        "norm-kind",
        change_model(is_head_norm_rms=True),
        lambda *_: [Anywhere(r"(?i)rms|mean|cent|root|group norm|layer norm")],
        equivalents=("missing-step", "missing-term"),
    ),
    "swish_gradient": Fault(
        "the own backward pass of a fused swish multiplies by the sigmoid, without the term of its "
        "slope",
        "missing-term",
        change_model(is_swish_gate_constant=True),
        equivalents=("gradient-stopped", "gradient-scaled", "activation-kind", "missing-step"),
    ),
    "decays_by_example": Fault(
        "decays get their new axis behind the heads, not in front of them: there are as many "
        "examples as heads, and each example has the decay of one head",
        "axes-swapped",
        change_model(are_decays_by_example=True),
        equivalents=(
            "decay-exponent",
            "heads-permuted",
            "input-order",
            "input-source",
            "missing-step",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("decays_spread", "pytorch"),
    ("frequencies", "mindspore"),
    ("one_group", "mindspore"),
    ("gate_early", "pytorch"),
    ("products_half", "mindspore"),
    ("rows_for_halves", "pytorch"),
    ("others_smoothed", "mindspore"),
    ("sequences_averaged", "pytorch"),
    ("scores_stopped", "pytorch"),
    ("embedding_gradient", "mindspore"),
    ("cosine_rate", "pytorch"),
    ("decay_all", "mindspore"),
    ("loss_bits", "pytorch"),
    ("gate_by_name", "mindspore"),
    ("deep_residual", "mindspore"),
    ("head_norm_rms", "pytorch"),
    ("swish_gradient", "mindspore"),
    ("decays_by_example", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
