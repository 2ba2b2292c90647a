"""Faults of the detection in the bird's-eye view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere

from families.bev.architecture import CODE, Model
from families.fault import Fault, change_model, change_weight

_GATE_LAYERS = ("mlp.0", "mlp.1", "reduce", "expand")


def _exchange_gates(model: Model) -> Model:
    """Give the gates of context the weights of those of depths, and the other way round."""
    weights = dict(model.weights)
    for layer in _GATE_LAYERS:
        for name in ("weight", "bias"):
            context, bins = f"context.{layer}.{name}", f"bins.{layer}.{name}"
            weights[context], weights[bins] = model.weights[bins], model.weights[context]
    return replace(model, weights=weights)


def _exchange_sizes(model: Model) -> Model:
    """Give the head of sizes the rows of a checkpoint with lengths before widths."""
    for name in ("weight", "bias"):
        change = change_weight(f"heads.size.out.{name}", lambda rows: rows[np.array([1, 0, 2])])
        model = change(model)
    return model


FAULTS: Mapping[str, Fault] = {
    "softmax_columns": Fault(
        "the softmax of depths has its default axis, the last one: columns, not bins",
        "softmax-axis",
        change_model(is_softmax_of_columns=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|softmax")],
        equivalents=("reduction-axis", "axes-swapped", "argument"),
    ),
    "cells_truncated": Fault(
        "points are cast to whole cells, as the published code does: those less than a cell before "
        "the grid are rounded towards zero and pooled into its first row, column or layer",
        "rounding-mode",
        change_model(are_cells_truncated=True),
        equivalents=("missing-step", "mask-kind", "mask-missing", "input-source"),
    ),
    "bins_early": Fault(
        "bins of the depths' labels count from the first depth, not from a step before it: the "
        "one-hot vectors, whose first number is cut off, are one bin early",
        "label-shift",
        change_model(are_bins_early=True),
        lambda *_: [Anywhere(r"(?i)shift|offset|add|subtract|constant|label|target|\b1\b")],
        equivalents=(
            "loss-target",
            "constant-offset",
            "row-shift",
            "position-offset",
            "missing-step",
            "missing-term",
            "argument",
            "input-source",
        ),
    ),
    "outside_trained": Fault(
        "the own backward pass of pooling has no mask: points outside the grid get the gradient of "
        "the first cell, to which their index is set",
        "mask-missing",
        change_model(is_outside_trained=True),
        equivalents=(
            "missing-step",
            "mask-kind",
            "straight-through",
            "gradient-stopped",
        ),
    ),
    "gates_exchanged": Fault(
        "weights loaded by their order, from a checkpoint that has the gates of depths before "
        "those of context; all have one shape",
        "weight-swapped",
        _exchange_gates,
        equivalents=("input-source", "input-order"),
    ),
    "corners_unaligned": Fault(
        "upsampling does not align corners, which is the default",
        "align-corners",
        change_model(are_corners_aligned=False),
        lambda *_: [Anywhere("(?i)corner|resiz|upsampl|interpol|linear")],
        equivalents=("resize-mode", "argument"),
    ),
    "shift_last": Fault(
        "the augmentation of an image is undone in the wrong order: its matrix, then its shift",
        "layer-order",
        change_model(is_shift_last=True),
        equivalents=("position-offset", "constant-offset", "input-source"),
    ),
    "velocities_full": Fault(
        "velocities count as much as the other parts of a box: the default of the weights is ones",
        "loss-weight",
        change_model(code_weights=(1.0,) * CODE),
        lambda *_: [
            Anywhere(
                r"(?i)weight|factor|column|channel|element|"
                r"(?<![\w.])(?:0\.2|5(?:\.0\d*)?|4\.99\d*)(?![\w.]*\d)"
            )
        ],
        equivalents=("constant-factor", "scale", "missing-step", "argument"),
    ),
    "depth_detached": Fault(
        "depths are detached where they multiply the context: only their own loss trains them",
        "gradient-stopped",
        change_model(is_depth_detached=True),
        equivalents=("missing-term",),
    ),
    "predictions_transposed": Fault(
        "predictions are flattened column by column, as of a grid whose first axis is x; indices "
        "of centers are row by row",
        "axes-swapped",
        change_model(are_predictions_transposed=True),
        equivalents=("input-order", "channel-order", "heads-permuted", "argument"),
    ),
    "sizes_exchanged": Fault(
        "the head of sizes comes from a checkpoint with lengths before widths, as before the "
        "library changed their order",
        "weight-rows",
        _exchange_sizes,
        lambda *_: [Anywhere("(?i)order|row|channel|exchang|swap|permut")],
        equivalents=("channel-order", "heads-permuted", "input-order", "split-order"),
    ),
    "images_reordered": Fault(
        "images are in the order of the folders, with the second camera first; poses and "
        "intrinsics are in that of the configuration",
        "batch",
        change_model(image_order=(1, 0, 2)),
        equivalents=("input-order", "row-shift", "heads-permuted", "input-source"),
    ),
    "heights_pooled": Fault(
        "points are dropped by their row and column only: those above and below the grid, which is "
        "one cell high, are pooled, too",
        "mask-missing",
        change_model(are_heights_pooled=True),
        equivalents=("mask-kind", "missing-step"),
    ),
    "yaws_clockwise": Fault(
        "boxes come from files of the library before it changed its coordinates: yaws are "
        "clockwise and from the other axis, -yaw - pi / 2",
        "batch",
        change_model(are_yaws_clockwise=True),
        equivalents=("loss-target", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("softmax_columns", "mindspore"),
    ("cells_truncated", "mindspore"),
    ("bins_early", "mindspore"),
    ("outside_trained", "mindspore"),
    ("gates_exchanged", "mindspore"),
    ("corners_unaligned", "mindspore"),
    ("shift_last", "pytorch"),
    ("velocities_full", "pytorch"),
    ("depth_detached", "pytorch"),
    ("predictions_transposed", "pytorch"),
    ("sizes_exchanged", "pytorch"),
    ("images_reordered", "pytorch"),
    ("heights_pooled", "mindspore"),
    ("yaws_clockwise", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "cumsum": ("", "cumsum"),
    "matrix": ("matrix", ""),
    "both": ("matrix", "cumsum"),
}
