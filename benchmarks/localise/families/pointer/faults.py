"""Faults of the solver of routing problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.pointer.architecture import (
    CAPACITIES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    STARTS,
    Model,
)


def _forget_permutation(model: Model) -> Model:
    """Reshape weights (heads, in, features of a head) to (out, in) without exchanging axes."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        for name in (f"layers.{n}.{projection}.weight" for projection in "qkv"):
            heads = weights[name].reshape(HEADS, HEAD_DIM, HIDDEN).swapaxes(1, 2)
            weights[name] = np.ascontiguousarray(heads).reshape(HIDDEN, HIDDEN)
    return replace(model, weights=weights)


def _exchange_keys(model: Model) -> Model:
    """Give the glimpse the key of the logits, and the logits that of the glimpse."""
    first, second = "decoder.glimpse_key.weight", "decoder.logit_key.weight"
    exchanged = {first: model.weights[second], second: model.weights[first]}
    return replace(model, weights={**model.weights, **exchanged})


FAULTS: Mapping[str, Fault] = {
    "load_given": Fault(
        "the decoder's context has the used capacity, which the state keeps, not the remaining one",
        "input-source",
        change_model(is_load_given=True),
        equivalents=(
            "missing-step",
            "missing-term",
            "constant-offset",
            "constant-factor",
            "scale",
            "input-order",
        ),
    ),
    "clipped_late": Fault(
        "logits are masked first and clipped by tanh then: what is hidden has the logit -10, not "
        "-1e9",
        "layer-order",
        change_model(is_clipped_late=True),
        equivalents=("mask-fill", "mask-missing", "mask-kind", "clamp", "input-source"),
    ),
    "entropy_of_padding": Fault(
        "the entropy is the mean over all steps: those behind the end of a tour are counted, too",
        "loss-reduction",
        change_model(is_entropy_of_padding=True),
        lambda *_: [
            Anywhere(
                r"(?i)mean|mask|pad|count|step|element|number|"
                r"(?<![\w.])(?:98|120|0\.81[67]\d*|1\.22\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=(
            "pooling",
            "mask-missing",
            "constant-factor",
            "scale",
            "loss-weight",
            "missing-step",
            "input-source",
        ),
    ),
    "nodes_stopped": Fault(
        "what is the same at all steps, keys and values of the decoder, is computed of detached "
        "embeddings, as for inference",
        "gradient-stopped",
        change_model(are_nodes_stopped=True),
        equivalents=("missing-term",),
    ),
    "permutation_forgotten": Fault(
        "the encoder's queries, keys and values are loaded from weights (heads, in, features), "
        "which are reshaped, without exchanging the last two axes, to linear ones (out, in)",
        "weight-transposed",
        _forget_permutation,
        lambda *_: [
            Anywhere("(?i)order|row|transpos|exchang|swap|permut|ax[ei]s|interleav|block|reshap")
        ],
        equivalents=("axes-swapped", "weight-rows", "heads-permuted", "split-order"),
    ),
    "coordinates_tiled": Fault(
        "coordinates are repeated as a whole for each start, but tours are instance by instance: "
        "a tour's length is that of another instance",
        "axes-swapped",
        change_model(are_coordinates_tiled=True),
        equivalents=(
            "input-order",
            "row-shift",
            "split-order",
            "heads-permuted",
            "channel-order",
            "input-source",
            "missing-step",
            "argument",
        ),
    ),
    "padding_normed": Fault(
        "batch norms get all nodes, as in the code for instances of one size: their statistics "
        "have those of padding, too",
        "mask-missing",
        change_model(is_padding_normed=True),
        equivalents=("missing-step", "input-source", "norm-kind", "mask-kind", "pooling"),
    ),
    "baseline_of_batch": Fault(
        "the shared baseline is the mean length of the tours with the same start of all "
        "instances, not of the tours of an instance",
        "reduction-axis",
        change_model(baseline_axis=0),
        equivalents=("axes-swapped", "pooling", "argument", "input-source"),
    ),
    "mask_not_recomputed": Fault(
        "the glimpse has a backward pass of its own, which computes its weights again and does "
        "not hide anything then",
        "mask-missing",
        change_model(is_mask_recomputed=False),
        equivalents=("mask-kind", "missing-step", "gradient-scaled", "input-source"),
    ),
    "nodes_averaged": Fault(
        "a hook divides the gradient of the encoder's embeddings by the number of starts, as if "
        "it were a sum and the loss no mean",
        "gradient-scaled",
        change_model(node_gradient=1 / STARTS),
        lambda faulty, clean: [Ratio(faulty.node_gradient / clean.node_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "keys_exchanged": Fault(
        "a checkpoint has key of logits, value and key of the glimpse in one matrix, and is "
        "loaded as key of the glimpse, value and key of logits",
        "weight-swapped",
        _exchange_keys,
        lambda *_: [Anywhere("(?i)key|order|row|swap|exchang|permut|block|project_node")],
        equivalents=("split-order", "weight-rows", "input-order", "channel-order"),
    ),
    "capacity_of_twenty": Fault(
        "demands are divided by the capacity of problems with 20 customers, 30, not by that of "
        "problems with 10, which is 20",
        "batch",
        change_model(capacity=CAPACITIES[20]),
        equivalents=("constant-factor", "scale", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("load_given", "mindspore"),
    ("clipped_late", "mindspore"),
    ("entropy_of_padding", "mindspore"),
    ("nodes_stopped", "mindspore"),
    ("permutation_forgotten", "mindspore"),
    ("coordinates_tiled", "mindspore"),
    ("padding_normed", "pytorch"),
    ("baseline_of_batch", "pytorch"),
    ("mask_not_recomputed", "pytorch"),
    ("nodes_averaged", "pytorch"),
    ("keys_exchanged", "pytorch"),
    ("capacity_of_twenty", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "parallel": ("", "parallel"),
    "written": ("written", ""),
    "both": ("written", "parallel"),
}
