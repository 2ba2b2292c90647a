"""Faults of optical flow."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.opticalflow.architecture import FACTOR, FEATURES, GAMMA, NEIGHBOURS, Model


def _order_offsets_first(model: Model) -> Model:
    """Order the mask's channels as (offset, neighbour), as a net with channels last reads them."""
    order = np.arange(NEIGHBOURS * FACTOR**2).reshape(NEIGHBOURS, FACTOR**2).T.ravel()
    moved = {name: model.weights[name][order] for name in ("mask.1.weight", "mask.1.bias")}
    return change_model(weights={**model.weights, **moved})(model)


FAULTS: Mapping[str, Fault] = {
    "window_order": Fault(
        "the first index of the window moves y, as its loops suggest; in RAFT it moves x",
        "axes-swapped",
        change_model(is_window_y_first=True),
        equivalents=(
            "channel-order",
            "input-order",
            "input-source",
            "split-order",
            "position-offset",
            "argument",
        ),
    ),
    "pool_same": Fault(
        "the pyramid is pooled with the padding 'same', which keeps a last odd row and column",
        "padding-mode",
        change_model(is_pool_same=True),
        equivalents=("pooling", "argument", "missing-step"),
    ),
    "context_second": Fault(
        "the context encoder reads the second image",
        "input-source",
        change_model(is_context_second=True),
        equivalents=("input-order", "missing-step", "batch"),
    ),
    "flow_factor": Fault(
        "upsampled flow is still in coarse pixels, not multiplied by the factor",
        "constant-factor",
        change_model(flow_factor=1.0),
        lambda faulty, clean: [Ratio(faulty.flow_factor / clean.flow_factor)],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "update_reversed": Fault(
        "the update gate is the share of the old state, as in other frameworks' cells",
        "cell-form",
        change_model(is_update_reversed=True),
        equivalents=("gate-order", "input-order", "input-source", "missing-step", "layer-order"),
    ),
    "gamma_reversed": Fault(
        "the sequence loss weighs the first iteration most: GAMMA^n",
        "loss-weight",
        change_model(is_gamma_reversed=True),
        lambda *_: [
            Anywhere(rf"(?<![\w.])(?:{GAMMA:g}\d*|0?\.79\d+|{1 / GAMMA:g}\d*|1\.24\d+)|order")
        ],
        equivalents=("constant-factor", "scale", "input-order", "layer-order", "argument"),
    ),
    "magnitude_squared": Fault(
        "the length of a flow is compared with its limit without the root of the sum of squares",
        "loss-threshold",
        change_model(is_magnitude_squared=True),
        equivalents=("missing-step", "mask-kind", "mask-missing", "activation-kind", "argument"),
    ),
    "coords_attached": Fault(
        "coordinates keep their gradient from one iteration to the next",
        "gradient-stopped",
        change_model(are_coords_attached=True),
        equivalents=("missing-step", "missing-term"),
    ),
    "hidden_stopped": Fault(
        "an iteration takes the hidden state as a constant, like the coordinates",
        "gradient-stopped",
        change_model(is_hidden_stopped=True),
        equivalents=("missing-term",),
    ),
    "correlation_gradient": Fault(
        "a fused lookup divides by the root of the channels in its forward pass only",
        "gradient-scaled",
        change_model(correlation_gradient=math.sqrt(FEATURES)),
        lambda faulty, clean: [Ratio(faulty.correlation_gradient / clean.correlation_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "mask_rows": Fault(
        "channels of the mask come from a checkpoint with channels last: offset, neighbour",
        "weight-rows",
        _order_offsets_first,
        lambda *_: [Anywhere("(?i)order|row|permut")],
        equivalents=("channel-order", "axes-swapped", "split-order", "heads-permuted"),
    ),
    "coords_half": Fault(
        "coordinates are those of the pixels' centers, half a pixel more",
        "position-offset",
        change_model(coords_offset=0.5),
        lambda *_: [Anywhere(r"(?<![\w.])-?0?\.(?:5\d*|49\d+)|half|shift|offset")],
        equivalents=("constant-offset", "missing-term", "align-corners", "row-shift", "argument"),
    ),
    "lookup_border": Fault(
        "a lookup beyond the image reads the nearest pixel of the border, not zero",
        "padding-mode",
        change_model(lookup_padding="border"),
        equivalents=("mask-missing", "mask-kind", "missing-step", "clamp", "argument"),
    ),
    "corners_unaligned": Fault(
        "the sampler takes coordinates as without aligned corners, its default, though they are "
        "those of aligned ones",
        "align-corners",
        change_model(are_corners_aligned=False),
        lambda *_: [Anywhere("(?i)corner|sampl|interpol|linear|grid|coord|position|shift|offset")],
        equivalents=("resize-mode", "position-offset", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("window_order", "mindspore"),
    ("pool_same", "mindspore"),
    ("update_reversed", "mindspore"),
    ("magnitude_squared", "mindspore"),
    ("hidden_stopped", "mindspore"),
    ("mask_rows", "mindspore"),
    ("context_second", "pytorch"),
    ("flow_factor", "pytorch"),
    ("gamma_reversed", "pytorch"),
    ("coords_attached", "pytorch"),
    ("correlation_gradient", "pytorch"),
    ("coords_half", "pytorch"),
    ("lookup_border", "mindspore"),
    ("corners_unaligned", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "written": ("", "written"),
    "products": ("products", ""),
    "shared": ("shared", ""),
}
