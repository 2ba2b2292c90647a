"""Faults of the language model with a memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.transfoxl.architecture import HEAD_DIM, HEADS, LAYERS, Model


def _order_rows_by_head(model: Model) -> Model:
    """Give the fused projections rows in which q, k and v of a head follow each other."""
    order = np.arange(3 * HEADS * HEAD_DIM).reshape(3, HEADS, HEAD_DIM).swapaxes(0, 1).ravel()
    weights = dict(model.weights)
    for n in range(LAYERS):
        name = f"layers.{n}.attention.qkv.weight"
        weights[name] = np.ascontiguousarray(weights[name][order])
    return change_model(weights=weights)(model)


def _exchange_biases(model: Model) -> Model:
    """Give u and v each other's values."""
    weights = dict(model.weights)
    weights["content.bias"] = model.weights["position.bias"]
    weights["position.bias"] = model.weights["content.bias"]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "sinusoids_interleaved": Fault(
        "sine and cosine of a frequency are next to each other, as in the first Transformer, not "
        "all sines before all cosines",
        "time-embedding-order",
        change_model(are_sinusoids_interleaved=True),
        equivalents=(
            "rope-layout",
            "axes-swapped",
            "input-order",
            "split-order",
            "channel-order",
        ),
    ),
    "memory_unnormed": Fault(
        "the norm before attention is of the layer's input only: the memory joins it behind",
        "norm-missing",
        change_model(is_memory_normed=False),
        equivalents=("layer-order", "missing-step", "input-source", "input-order"),
    ),
    "memory_attached": Fault(
        "the memory is not detached: the second segment's loss has a gradient through the first",
        "gradient-stopped",
        change_model(is_memory_stopped=False),
        equivalents=("missing-term",),
    ),
    "segments_averaged": Fault(
        "the loss is the mean of the segments' means, as where each segment is a step of its own, "
        "though the second one has fewer tokens",
        "loss-reduction",
        change_model(are_segments_averaged=True),
        equivalents=("loss-weight", "pooling", "missing-step", "missing-term", "input-source"),
    ),
    "rows_by_head": Fault(
        "rows of the fused projections come from a checkpoint that has q, k and v head by head, "
        "as Megatron's",
        "weight-rows",
        _order_rows_by_head,
        lambda *_: [Anywhere("(?i)order|row|head|permut|block|split|ax[ei]s")],
        equivalents=("split-order", "heads-permuted", "axes-swapped", "channel-order"),
    ),
    "shift_straight": Fault(
        "the relative shift's own backward pass returns the gradient as it is, not shifted back",
        "straight-through",
        change_model(is_shift_gradient_straight=True),
        equivalents=("missing-step", "row-shift", "gradient-scaled"),
    ),
    "embedding_unscaled": Fault(
        "embedded tokens are not multiplied by the root of their width",
        "constant-factor",
        change_model(embedding_scale=1.0),
        lambda faulty, clean: [Ratio(faulty.embedding_scale / clean.embedding_scale)],
        equivalents=("scale", "missing-step"),
    ),
    "memory_not_in_mask": Fault(
        "the mask's diagonal is that of attention without memory: as many of the last keys as the "
        "memory has are hidden, too",
        "mask-shifted",
        change_model(is_memory_in_mask=False),
        lambda *_: [Anywhere("(?i)mask|diagonal|hid|causal|shift")],
        equivalents=("mask-kind", "causal-shift", "mask-missing", "argument"),
    ),
    "cluster_ignored": Fault(
        "a tail word's loss is that within its cluster: the log probability of the cluster itself "
        "is not added",
        "missing-term",
        change_model(has_cluster_term=False),
        equivalents=("missing-step", "loss-target", "loss-kind", "input-source"),
    ),
    "bias_gradient": Fault(
        "gradients of the shared biases u and v are averaged over the layers, not summed",
        "gradient-scaled",
        change_model(bias_gradient=1 / LAYERS),
        lambda faulty, clean: [Ratio(faulty.bias_gradient / clean.bias_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "biases_exchanged": Fault(
        "the biases of contents and of positions are exchanged on load: r_w_bias is taken for that "
        "of relative positions",
        "weight-swapped",
        _exchange_biases,
        equivalents=("input-order", "input-source"),
    ),
    "second_shuffled": Fault(
        "the loader shuffles segments, not texts: the second ones follow those of other texts",
        "row-shift",
        change_model(second_order=(1, 2, 0)),
        equivalents=("batch", "input-order", "input-source"),
    ),
    "length_same": Fault(
        "the mask gives each step the same number of keys, same_length, which is the default of "
        "another library, not of the authors' training",
        "mask-kind",
        change_model(is_length_same=True),
        lambda *_: [Anywhere("(?i)mask|diagonal|hid|causal|window|key")],
        equivalents=("mask-missing", "mask-shifted", "missing-step", "missing-term", "argument"),
    ),
    "tables_cloned": Fault(
        "the softmax has clones of the embedding's tables and projection, as for export, and is "
        "trained with them: its gradient does not reach the embedding",
        "gradient-stopped",
        change_model(are_tables_cloned=True),
        equivalents=("missing-term", "weight-swapped", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("sinusoids_interleaved", "mindspore"),
    ("memory_unnormed", "mindspore"),
    ("memory_attached", "mindspore"),
    ("segments_averaged", "mindspore"),
    ("rows_by_head", "mindspore"),
    ("shift_straight", "mindspore"),
    ("embedding_unscaled", "pytorch"),
    ("memory_not_in_mask", "pytorch"),
    ("cluster_ignored", "pytorch"),
    ("bias_gradient", "pytorch"),
    ("biases_exchanged", "pytorch"),
    ("second_shuffled", "pytorch"),
    ("length_same", "mindspore"),
    ("tables_cloned", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "timed": ("", "timed"),
    "written": ("written", ""),
    "both": ("written", "timed"),
}
