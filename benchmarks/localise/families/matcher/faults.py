"""Faults of the matcher of key points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Order, Ratio

from families.fault import Fault, change_model
from families.matcher.architecture import HEAD_WIDTH, HEADS, LAYERS, SIZE, WIDTH, Model

#: Rows of a projection whose axis of heads lies behind that of the head's numbers.
_HEADS_LAST = np.arange(WIDTH).reshape(HEADS, HEAD_WIDTH).T.ravel()


def _put_heads_last(model: Model) -> Model:
    """Order the rows of queries, keys and values, and what reads them, with the heads last."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        for kind in ("self", "cross"):
            path = f"layers.{n}.{kind}"
            for name in ("query", "key", "value"):
                key = f"{path}.{name}.weight"
                weights[key] = np.ascontiguousarray(weights[key][_HEADS_LAST])
            key = f"{path}.out.weight"
            weights[key] = np.ascontiguousarray(weights[key][:, _HEADS_LAST])
    return change_model(weights=weights)(model)


def _group_layers(model: Model) -> Model:
    """Give layers weights of a file that has them in turn as if it had all of self first."""
    in_turn = [f"layers.{n}.{kind}." for n in range(LAYERS) for kind in ("self", "cross")]
    grouped = [f"layers.{n}.{kind}." for kind in ("self", "cross") for n in range(LAYERS)]
    weights = dict(model.weights)
    for source, target in zip(in_turn, grouped, strict=True):
        for name in model.weights:
            if name.startswith(target):
                weights[name] = model.weights[source + name.removeprefix(target)]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "halves_rotated": Fault(
        "queries and keys are rotated as halves, as in most language models, though the weights "
        "are of pairs of neighbours",
        "rope-layout",
        change_model(are_halves_rotated=True),
        lambda *_: [Anywhere("(?i)half|halves|interleav|pair|neighbour|adjacent|order|ax[ei]s")],
        equivalents=("axes-swapped", "split-order", "input-order", "channel-order"),
    ),
    "cross_mask_own": Fault(
        "cross-attention is given the mask of the points that read, not of those that are read",
        "cross-mask",
        change_model(is_cross_mask_own=True),
        equivalents=("mask-kind", "mask-missing", "input-source", "input-order", "argument"),
    ),
    "counts_exchanged": Fault(
        "the row that is added for Sinkhorn has the mass of its own image's points, and so has the "
        "column",
        "input-source",
        change_model(are_counts_exchanged=True),
        equivalents=("input-order", "argument", "constant-offset"),
    ),
    "confidence_attached": Fault(
        "descriptors are not detached before the confidence: its loss has a gradient to them",
        "gradient-stopped",
        change_model(is_confidence_stopped=False),
        equivalents=("missing-term",),
    ),
    "layers_grouped": Fault(
        "a checkpoint has self- and cross-attention in turn; its layers are loaded as if all of "
        "the first kind came first",
        "weight-swapped",
        _group_layers,
        equivalents=("layer-order", "input-source", "input-order"),
    ),
    "matches_pooled": Fault(
        "the loss of matches is the mean of all pairs' matches, not the mean of the pairs' means",
        "loss-reduction",
        change_model(are_matches_pooled=True),
        equivalents=("loss-weight", "pooling", "missing-step", "missing-term", "input-source"),
    ),
    "normalized_over_points": Fault(
        "descriptors are normalized over the points, which is the default axis of PyTorch's "
        "function and right where channels come first",
        "reduction-axis",
        change_model(normalized_axis=1),
        lambda *_: [Anywhere("(?i)ax[ei]s|columns|dim")],
        equivalents=("axes-swapped", "norm-kind", "argument", "input-source"),
    ),
    "encoding_gradient": Fault(
        "the gradient of the key-point encoder is a tenth, as GLM shrinks it of embeddings for "
        "stability",
        "gradient-scaled",
        change_model(encoding_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.encoding_gradient / clean.encoding_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "column_gradient": Fault(
        "the backward pass of a fused Sinkhorn takes the softmax of rows for the sums of columns",
        "gradient-scaled",
        change_model(is_column_gradient_of_rows=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|softmax|logsumexp|row|column|transpos")],
        equivalents=("softmax-axis", "reduction-axis", "axes-swapped", "input-source", "argument"),
    ),
    "heads_last": Fault(
        "a checkpoint of SuperGlue, whose heads are the last axis of a projection's rows, is "
        "loaded without ordering them",
        "heads-permuted",
        _put_heads_last,
        lambda *_: [Order(tuple(_HEADS_LAST.tolist()), 1)],
        equivalents=("axes-swapped", "weight-rows", "split-order", "channel-order"),
    ),
    "added_column_reused": Fault(
        "the loss of the second images' unmatched points reads the added column, a copy of the "
        "first images' line, not the added row",
        "input-source",
        change_model(is_added_column_reused=True),
        equivalents=("axes-swapped", "input-order", "argument"),
    ),
    "rows_first": Fault(
        "the detector's points come as row and column, not as x and y",
        "channel-order",
        change_model(are_rows_first=True),
        lambda *_: [
            Anywhere("(?i)order|column|exchang|swap|permut|revers|shift|flip|batch|input|data")
        ],
        equivalents=("batch", "input-order", "axes-swapped", "row-shift", "input-source"),
    ),
    "half_side": Fault(
        "positions are divided by half of the image's longer side, as in LightGlue, not by 0.7 of "
        "it, as in SuperGlue",
        "constant-factor",
        change_model(position_scale=0.5 * max(SIZE)),
        lambda *_: [
            Anywhere(r"(?<![\w.])(?:1\.4|1\.40+\d*|1\.39\d*|0\.71\d*|32(?:\.0*)?)(?![\w.])")
        ],
        equivalents=("scale", "rope-scaling", "argument"),
    ),
    "projections_interleaved": Fault(
        "the joined rows of self-attention are read as those of LightGlue, where query, key and "
        "value of each number follow each other, though they were joined one kind after the other",
        "split-order",
        change_model(are_projections_interleaved=True),
        equivalents=(
            "axes-swapped",
            "heads-permuted",
            "channel-order",
            "weight-rows",
            "input-order",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("halves_rotated", "mindspore"),
    ("cross_mask_own", "mindspore"),
    ("counts_exchanged", "mindspore"),
    ("confidence_attached", "mindspore"),
    ("layers_grouped", "mindspore"),
    ("matches_pooled", "mindspore"),
    ("normalized_over_points", "pytorch"),
    ("encoding_gradient", "pytorch"),
    ("column_gradient", "pytorch"),
    ("heads_last", "pytorch"),
    ("added_column_reused", "pytorch"),
    ("rows_first", "pytorch"),
    ("half_side", "mindspore"),
    ("projections_interleaved", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "convolved": ("", "convolved"),
    "written": ("written", ""),
    "both": ("written", "convolved"),
}
