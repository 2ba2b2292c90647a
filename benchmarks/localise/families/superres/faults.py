"""Faults of super-resolution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model
from families.superres.architecture import FACTOR, FEATURES, MEAN, ORIGIN, RESIDUAL_SCALE, Model


def _order_offsets_first(model: Model) -> Model:
    """Give the channels before the pixel shuffle the order of TensorFlow's depth_to_space."""
    order = np.arange(FACTOR**2 * FEATURES).reshape(FEATURES, FACTOR**2).T.ravel()
    moved = {name: model.weights[name][order] for name in ("up.weight", "up.bias")}
    return change_model(weights={**model.weights, **moved})(model)


FAULTS: Mapping[str, Fault] = {
    "dilation": Fault(
        "the large kernel of the attention is not dilated",
        "dilation",
        change_model(dilation=1),
        lambda faulty, clean: [Values(faulty.dilation, clean.dilation)],
        equivalents=("argument",),
    ),
    "input_gated": Fault(
        "large-kernel attention multiplies the block's input, not what it was computed from",
        "input-source",
        change_model(is_input_gated=True),
        equivalents=("skip-source", "layer-order", "missing-step"),
    ),
    "skip_last": Fault(
        "the loop over the groups overwrites the shallow features: the long skip adds its result",
        "skip-source",
        change_model(is_skip_last=True),
        equivalents=("input-source", "residual-order"),
    ),
    "mean_reversed": Fault(
        "the mean of the colors is in the order of OpenCV, blue first; the images have red first",
        "channel-order",
        change_model(mean=MEAN[::-1]),
        equivalents=("constant-offset", "argument", "batch"),
    ),
    "antialias": Fault(
        "the bicubic skip has the option antialias, whose coefficient is -0.5, not -0.75",
        "resize-mode",
        change_model(is_antialiased=True),
        equivalents=("argument", "align-corners"),
    ),
    "epsilon_plain": Fault(
        "the Charbonnier loss adds its constant, 1e-3, as it is, not the square of it",
        "epsilon",
        change_model(epsilon=1e-3),
        lambda faulty, clean: [Values(faulty.epsilon, clean.epsilon)],
        equivalents=("argument", "constant-offset"),
    ),
    "edge_zeros": Fault(
        "images have zeros around them, not their border again, when their edges are compared",
        "padding-mode",
        change_model(edge_padding="zeros"),
        lambda *_: [Anywhere("(?i)pad|border|edge|replicat|zero")],
        equivalents=("argument", "missing-step", "input-source"),
    ),
    "features_constant": Fault(
        "activations are constants for the gradient, those of the images like those of the targets",
        "gradient-stopped",
        change_model(are_features_constant=True),
        equivalents=("missing-term",),
    ),
    "cut_passed": Fault(
        "the gradient of the loss of features passes the cut of colors to 0..1 as it is",
        "straight-through",
        change_model(is_cut_passed=True),
        equivalents=("clamp", "missing-step", "missing-term", "input-source"),
    ),
    "branch_gradient": Fault(
        "a fused scaled sum returns the gradient of its sum to the branch, without the scale",
        "gradient-scaled",
        change_model(branch_gradient=1 / RESIDUAL_SCALE),
        lambda faulty, clean: [Ratio(faulty.branch_gradient / clean.branch_gradient)],
        equivalents=("residual-scale", "constant-factor", "scale"),
    ),
    "up_rows": Fault(
        "channels before the pixel shuffle come from a checkpoint of TensorFlow: offset, channel",
        "weight-rows",
        _order_offsets_first,
        lambda *_: [Anywhere("(?i)order|row|permut")],
        equivalents=("channel-order", "axes-swapped", "split-order", "heads-permuted"),
    ),
    "target_crop": Fault(
        "targets are cropped at the pixel of the small images, without the factor between both",
        "loss-target",
        change_model(target_origin=ORIGIN),
        equivalents=("batch", "label-shift", "row-shift", "position-offset", "input-source"),
    ),
    "features_unnormed": Fault(
        "the network without training reads colors as they are, without its mean and deviation",
        "missing-step",
        change_model(are_features_normed=False),
        equivalents=("missing-term", "norm-missing", "input-source", "constant-offset", "scale"),
    ),
    "skip_detached": Fault(
        "the long skip keeps a detached copy of the shallow features: the head learns only "
        "through the groups",
        "gradient-stopped",
        change_model(is_skip_detached=True),
        equivalents=("missing-term",),
    ),
    "features_raw": Fault(
        "activations of the network without training are compared before their relu, as in ESRGAN",
        "input-source",
        change_model(are_features_raw=True),
        equivalents=("missing-step", "activation-kind", "layer-order"),
    ),
    "contrast": Fault(
        "a channel's gate reads the mean of its pixels plus their deviation, as in IMDN",
        "pooling",
        change_model(has_contrast=True),
        equivalents=("missing-term", "missing-step", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("dilation", "mindspore"),
    ("input_gated", "mindspore"),
    ("skip_last", "mindspore"),
    ("features_constant", "mindspore"),
    ("cut_passed", "mindspore"),
    ("up_rows", "mindspore"),
    ("mean_reversed", "pytorch"),
    ("antialias", "pytorch"),
    ("epsilon_plain", "pytorch"),
    ("edge_zeros", "pytorch"),
    ("branch_gradient", "pytorch"),
    ("target_crop", "pytorch"),
    ("features_unnormed", "mindspore"),
    ("skip_detached", "pytorch"),
    ("features_raw", "mindspore"),
    ("contrast", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "written": ("", "written"),
    "joined": ("", "joined"),
    "products": ("products", ""),
}
