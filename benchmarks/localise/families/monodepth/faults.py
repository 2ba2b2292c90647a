"""Faults of self-supervised depth from video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model, change_weight
from families.monodepth.architecture import Model


def _put_translation_first(model: Model) -> Model:
    """Give the pose network the rows of a checkpoint with (translation, rotation)."""
    rows = {
        name: np.roll(model.weights[name], 3, axis=0)
        for name in ("pose.out.weight", "pose.out.bias")
    }
    return replace(model, weights={**model.weights, **rows})


FAULTS: Mapping[str, Fault] = {
    "inverse_in_order": Fault(
        "the inverse matrix of the earlier frame is translation @ rotation, in the order of the "
        "other one, not rotation @ translation",
        "layer-order",
        change_model(is_inverse_in_order=True),
        lambda *_: [
            Anywhere("(?i)order|exchang|swap|revers|operand|input|product|before|behind|rotat")
        ],
        equivalents=("input-order", "missing-step", "input-source"),
    ),
    "ssim_padded_same": Fault(
        "means of SSIM are those of a pooling with the padding 'same', which counts only pixels of "
        "the image, without reflection",
        "padding-mode",
        change_model(is_ssim_padded_same=True),
        lambda *_: [Anywhere("(?i)pad|reflect|border|edge|pool|same|valid")],
        equivalents=("pooling", "missing-step", "argument"),
    ),
    "warp_gradient": Fault(
        "the own backward pass of the sampler has the gradient of columns and rows for that of "
        "places, which are from -1 to 1: it is not multiplied by half of the size",
        "gradient-scaled",
        change_model(is_warp_gradient_in_pixels=True),
        lambda *_: [
            Anywhere(
                r"(?i)column|channel|element|part|position|entr|"
                r"(?<![\w.])(?:0?\.08[67]\d*|0?\.13[34]?\d*|11\.[45]\d*|7\.[45]\d*)(?![\w.]*\d)"
            )
        ],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "hidden_counted": Fault(
        "the photometric error is the mean over all pixels, those that the mask hides being zeros",
        "loss-reduction",
        change_model(are_hidden_counted=True),
        equivalents=(
            "pooling",
            "loss-weight",
            "constant-factor",
            "scale",
            "mask-missing",
            "missing-step",
        ),
    ),
    "pose_undivided": Fault(
        "the first kernel of the pose network is that for one image, repeated for two, but not "
        "divided by two",
        "weight-scaled",
        change_weight("pose.0.weight", lambda weight: 2 * weight),
        lambda *_: [Ratio(2.0)],
        equivalents=("constant-factor", "scale"),
    ),
    "principal_unmirrored": Fault(
        "a sample's images are mirrored as an augmentation, but its principal point is not",
        "batch",
        change_model(is_principal_mirrored=False),
        equivalents=("constant-offset", "input-source", "position-offset"),
    ),
    "pixels_by_columns": Fault(
        "the grid of pixels is made with indexing 'ij', the default, of columns and rows: it is "
        "flattened column by column, depths row by row",
        "axes-swapped",
        change_model(are_pixels_by_columns=True),
        equivalents=(
            "input-order",
            "channel-order",
            "heads-permuted",
            "split-order",
            "position-offset",
            "input-source",
            "argument",
        ),
    ),
    "corners_unaligned": Fault(
        "the sampler does not align corners, its default since version 1.3, though places are "
        "divided by the size minus one",
        "align-corners",
        change_model(are_corners_aligned=False),
        lambda *_: [Anywhere("(?i)corner|sampl|interpol|linear|grid|coord|position|shift|offset")],
        equivalents=("resize-mode", "position-offset", "argument"),
    ),
    "ratio_attached": Fault(
        "the ratio that aligns the scale of depths is no constant: it gets a gradient, too",
        "gradient-stopped",
        change_model(is_ratio_detached=False),
        equivalents=("missing-term",),
    ),
    "inverse_detached": Fault(
        "the inverse matrix is detached, as if inverted outside of the graph: the earlier frame "
        "does not train the pose network",
        "gradient-stopped",
        change_model(is_inverse_detached=True),
        equivalents=("missing-term",),
    ),
    "translation_first": Fault(
        "the last layer of the pose network comes from code whose poses are (translation, "
        "rotation), not (rotation, translation)",
        "weight-rows",
        _put_translation_first,
        lambda *_: [
            Anywhere("(?i)order|row|exchang|swap|permut|roll|shift|block|channel|split|part")
        ],
        equivalents=(
            "channel-order",
            "heads-permuted",
            "split-order",
            "input-order",
            "row-shift",
        ),
    ),
    "smoothness_undivided": Fault(
        "the smoothness counts the same at all scales, it is not divided by 2^scale",
        "loss-weight",
        change_model(is_smoothness_divided=False),
        lambda *_: [
            Anywhere(
                r"(?i)weight|divi|factor|scale|times|missing|"
                r"(?<![\w.])(?:[24](?:\.0+\d*)?|1\.99\d*|3\.99\d*|0?\.50*|0?\.250*)(?![\w.]*\d)"
            )
        ],
        equivalents=("constant-factor", "scale", "missing-step", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("inverse_in_order", "mindspore"),
    ("ssim_padded_same", "mindspore"),
    ("warp_gradient", "mindspore"),
    ("hidden_counted", "mindspore"),
    ("pose_undivided", "mindspore"),
    ("principal_unmirrored", "mindspore"),
    ("pixels_by_columns", "pytorch"),
    ("corners_unaligned", "pytorch"),
    ("ratio_attached", "pytorch"),
    ("inverse_detached", "pytorch"),
    ("translation_first", "pytorch"),
    ("smoothness_undivided", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "batched": ("", "batched"),
    "written": ("written", ""),
    "both": ("written", "batched"),
}
