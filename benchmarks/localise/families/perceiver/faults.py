"""Faults of the Perceiver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.perceiver.architecture import BATCH, BETA, HEAD_DIM, HEADS, HIDDEN, VALUES, Model


def _read_by_head(model: Model) -> Model:
    """Give the decoder keys and values of a joined matrix that has them head by head."""
    names = [f"decoder.attention.{name}.weight" for name in "kv"]
    joined = np.concatenate([model.weights[name] for name in names])
    by_head = joined.reshape(HEADS, 2, HEAD_DIM, -1)
    parts = (np.ascontiguousarray(by_head[:, n]).reshape(HEADS * HEAD_DIM, -1) for n in range(2))
    return replace(model, weights={**model.weights, **dict(zip(names, parts, strict=True))})


def _exchange_halves(model: Model) -> Model:
    """Exchange both halves of the block's gated layer, weights and biases."""
    weights = dict(model.weights)
    for name in ("weight", "bias"):
        value, gate = (f"block.mlp.{half}.{name}" for half in ("value", "gate"))
        weights[value], weights[gate] = weights[gate], weights[value]
    return replace(model, weights=weights)


def _keep_squares(model: Model) -> Model:
    """Give all square linear layers the matrices (in, out) of a checkpoint as they are."""
    squares = {
        name: np.ascontiguousarray(values.T)
        for name, values in model.weights.items()
        if values.shape == (HIDDEN, HIDDEN)
    }
    return replace(model, weights={**model.weights, **squares})


FAULTS: Mapping[str, Fault] = {
    "bands_logarithmic": Fault(
        "frequencies of the positions are powers, as in another port, not equally spaced",
        "rope-theta",
        change_model(are_bands_logarithmic=True),
        equivalents=("rope-scaling", "argument", "input-source"),
    ),
    "distances_reversed": Fault(
        "sinusoids of the distances begin at the smallest one, though the shift wants the largest",
        "relative-bias",
        change_model(are_distances_reversed=True),
        equivalents=(
            "rope-direction",
            "row-shift",
            "weight-rows",
            "argument",
            "input-source",
        ),
    ),
    "biases_unscaled": Fault(
        "queries are scaled before the biases of contents and positions are added to them",
        "layer-order",
        change_model(are_biases_scaled=False),
        equivalents=("scale", "constant-factor", "relative-bias", "input-source"),
    ),
    "mask_late": Fault(
        "probabilities of padding are set to 0 behind the softmax, and not normalized again",
        "mask-kind",
        change_model(is_mask_late=True),
        equivalents=(
            "layer-order",
            "mask-missing",
            "cross-mask",
            "mask-fill",
            "missing-step",
            "missing-term",
        ),
    ),
    "input_eps": Fault(
        "the norm of the array has Keras' epsilon, 1e-3",
        "epsilon",
        change_model(input_eps=1e-3),
        lambda faulty, clean: [Values(faulty.input_eps, clean.input_eps)],
        equivalents=("argument",),
    ),
    "by_head": Fault(
        "the converter cuts the decoder's joined keys and values head by head, not in halves",
        "split-order",
        _read_by_head,
        equivalents=("weight-rows", "heads-permuted", "weight-swapped"),
    ),
    "halves_exchanged": Fault(
        "the converter takes the first half of the block's gated layer for the gate",
        "gate-up-swapped",
        _exchange_halves,
        equivalents=("weight-swapped", "split-order", "gate-order"),
    ),
    "huber": Fault(
        "Huber loss for smooth L1: the same but for the factor beta",
        "constant-factor",
        change_model(value_loss="huber"),
        lambda *_: [Ratio(BETA)],
        equivalents=("loss-kind", "loss-weight", "loss-threshold", "scale"),
    ),
    "rows_counted": Fault(
        "the sum of all numbers' losses is divided by the mask's sum, which counts rows",
        "loss-reduction",
        change_model(are_rows_counted=True),
        lambda *_: [Ratio(VALUES)],
        equivalents=("loss-weight", "constant-factor", "scale", "pooling"),
    ),
    "keys_cached": Fault(
        "the block's second run takes the keys of the distances from a cache, without gradient",
        "gradient-stopped",
        change_model(are_keys_cached=True),
    ),
    "latent_gradient": Fault(
        "the gradient of the learned latents is the mean over the batch, not the sum",
        "gradient-scaled",
        change_model(latent_gradient=1 / BATCH),
        lambda faulty, clean: [Ratio(faulty.latent_gradient / clean.latent_gradient)],
        equivalents=("constant-factor",),
    ),
    "vectors_unclipped": Fault(
        "gradients of biases and norms, a group of their own, are not clipped",
        "clip",
        change_optimizer(group="vectors", group_clipped=False),
        optimizer=True,
        equivalents=("gradient-norm",),
    ),
    "positions_first": Fault(
        "positions come before their sines and cosines, as in Transformers, not behind them",
        "input-order",
        change_model(are_positions_first=True),
        equivalents=("time-embedding-order", "channel-order", "split-order", "row-shift"),
    ),
    "masks_by_head": Fault(
        "masks are repeated head by head for scores in the order (array, head): heads read the "
        "masks of other arrays",
        "mask-kind",
        change_model(are_heads_outside=True),
        equivalents=(
            "cross-mask",
            "axes-swapped",
            "heads-permuted",
            "row-shift",
            "input-order",
            "input-source",
        ),
    ),
    "queries_not_added": Fault(
        "queries are not added to what they read: the decoder has the configuration of image "
        "classification, without the query residual",
        "skip-missing",
        change_model(are_queries_added=False),
        equivalents=("missing-term", "missing-step"),
    ),
    "squares_kept": Fault(
        "the converter from Haiku, whose matrices are (in, out), transposes those only that do not "
        "fit: square ones are loaded as they are",
        "weight-transposed",
        _keep_squares,
        equivalents=("axes-swapped",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("bands_logarithmic", "pytorch"),
    ("distances_reversed", "mindspore"),
    ("biases_unscaled", "pytorch"),
    ("mask_late", "mindspore"),
    ("input_eps", "mindspore"),
    ("by_head", "mindspore"),
    ("halves_exchanged", "pytorch"),
    ("huber", "mindspore"),
    ("rows_counted", "pytorch"),
    ("keys_cached", "pytorch"),
    ("latent_gradient", "mindspore"),
    ("vectors_unclipped", "pytorch"),
    ("positions_first", "mindspore"),
    ("masks_by_head", "pytorch"),
    ("queries_not_added", "mindspore"),
    ("squares_kept", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "named": ("", "named"),
    "written": ("written", ""),
    "joined": ("joined", ""),
    "written_fused": ("written", "fused"),
}
