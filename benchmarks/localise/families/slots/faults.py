"""Faults of the object-centric video model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model
from families.slots.architecture import SLOT, Model


def _flip_kernels(model: Model) -> Model:
    """Return transposed convolutions with kernels turned around in rows and columns."""
    weights = dict(model.weights)
    for n in range(2):
        kernel = weights[f"decoder.{n}.weight"]
        weights[f"decoder.{n}.weight"] = np.ascontiguousarray(kernel[:, :, ::-1, ::-1])
    return replace(model, weights=weights)


def _put_update_first(model: Model) -> Model:
    """Return a cell with the rows update, reset, new where reset, update, new are expected."""
    weights = dict(model.weights)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        values = weights[f"attention.gru.{name}"]
        parts = values.reshape(3, SLOT, *values.shape[1:])[[1, 0, 2]]
        weights[f"attention.gru.{name}"] = np.ascontiguousarray(parts.reshape(values.shape))
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "sum_over_slots": Fault(
        "attention is divided by its sum over slots, which is one, not over cells: updates are "
        "weighted sums, not means",
        "reduction-axis",
        change_model(is_sum_over_slots=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|sum|mean|divi|normal|reduc|columns|rows")],
        equivalents=("axes-swapped", "missing-step", "pooling", "argument"),
    ),
    "kernels_unturned": Fault(
        "kernels of transposed convolutions come from Flax, whose layer does not turn them around, "
        "and are loaded as they are",
        "kernel-flipped",
        _flip_kernels,
        lambda *_: [Anywhere("(?i)flip|revers|turn|order")],
        equivalents=("kernel-axes", "axes-swapped", "weight-transposed", "scan-direction"),
    ),
    "coordinates_centered": Fault(
        "coordinates are those of centers of cells, not from 0 at the first cell to 1 at the last",
        "position-offset",
        change_model(are_coordinates_centered=True),
        equivalents=(
            "align-corners",
            "constant-offset",
            "constant-factor",
            "scale",
            "argument",
            "input-source",
        ),
    ),
    "smooth_l1": Fault(
        "boxes have smooth L1 with Huber's delta as its beta, which is Huber's loss divided by it",
        "loss-kind",
        change_model(is_smooth_l1=True),
        lambda *_: [
            Anywhere(
                r"(?i)smooth|huber|beta|delta|"
                r"(?<![\w.])(?:10(?:\.0\d*)?|9\.99\d*|0\.1(?:0\d*)?|0\.099\d*)(?![\w.]*\d)"
            )
        ],
        equivalents=("constant-factor", "scale", "loss-weight", "missing-step", "argument"),
    ),
    "mean_gradient_plain": Fault(
        "the weighted mean's own backward pass takes the sum of the attention for a constant",
        "gradient-stopped",
        change_model(is_mean_gradient_plain=True),
        equivalents=("missing-term", "missing-step", "gradient-scaled"),
    ),
    "boxes_rows_first": Fault(
        "boxes are given as (y0, x0, y1, x1), the order of TensorFlow's data sets",
        "batch",
        change_model(are_boxes_rows_first=True),
        equivalents=(
            "loss-target",
            "input-order",
            "channel-order",
            "axes-swapped",
            "heads-permuted",
            "input-source",
        ),
    ),
    "cell_exchanged": Fault(
        "the GRU cell gets slots as its input and updates as its state",
        "input-order",
        change_model(is_cell_exchanged=True),
        equivalents=("input-source", "skip-source", "argument"),
    ),
    "ignored_counted": Fault(
        "pixels without an object count as pixels of the first one in the loss of masks",
        "ignore-index",
        change_model(are_ignored_counted=True),
        equivalents=(
            "loss-target",
            "mask-missing",
            "missing-step",
            "loss-reduction",
            "loss-weight",
            "pooling",
            "input-source",
        ),
    ),
    "frames_first": Fault(
        "features of all frames are viewed as (frames, batch), though they are (batch, frames): "
        "a video gets frames of another one",
        "axes-swapped",
        change_model(are_frames_first=True),
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
    "slots_detached": Fault(
        "the predictor gets detached slots, as truncated backpropagation through time has them",
        "gradient-stopped",
        change_model(are_slots_detached=True),
        equivalents=("missing-term",),
    ),
    "update_first": Fault(
        "the GRU cell comes from Keras, which has the rows of update, reset and new, and is loaded "
        "as it is",
        "gate-order",
        _put_update_first,
        lambda *_: [Anywhere("(?i)gate|order|row|block|exchang|swap|permut|split")],
        equivalents=("weight-rows", "split-order", "heads-permuted", "channel-order"),
    ),
    "nothing_first": Fault(
        "the small weight of nothing is that of the first class, though nothing is the last one",
        "loss-weight",
        change_model(is_nothing_first=True),
        equivalents=(
            "input-order",
            "channel-order",
            "heads-permuted",
            "row-shift",
            "scan-direction",
            "constant-factor",
            "scale",
            "argument",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("sum_over_slots", "mindspore"),
    ("kernels_unturned", "mindspore"),
    ("coordinates_centered", "mindspore"),
    ("smooth_l1", "mindspore"),
    ("mean_gradient_plain", "mindspore"),
    ("boxes_rows_first", "mindspore"),
    ("cell_exchanged", "pytorch"),
    ("ignored_counted", "pytorch"),
    ("frames_first", "pytorch"),
    ("slots_detached", "pytorch"),
    ("update_first", "pytorch"),
    ("nothing_first", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
