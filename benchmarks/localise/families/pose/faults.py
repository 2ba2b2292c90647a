"""Faults of the net for human poses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Order, Ratio

from families.fault import Fault, change_model
from families.pose.architecture import BETA, FLIPPED, Model


def _flip_keypoints(model: Model) -> Model:
    """Give the head the order in which the right keypoint of a pair is before the left one."""
    flipped = {name: model.weights[name][list(FLIPPED)] for name in ("head.weight", "head.bias")}
    return change_model(weights={**model.weights, **flipped})(model)


def _skip_fused_norms(model: Model) -> Model:
    """Leave the norms between the branches at their initial values."""
    initial_values = {"weight": np.ones_like, "bias": np.zeros_like}
    weights = dict(model.weights)
    for name, values in model.weights.items():
        path, _, kind = name.rpartition(".")
        if path.endswith(("up.norm", "down.norm")):
            weights[name] = initial_values[kind](values)
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "down_rectified": Fault(
        "what goes down to the coarse branch is rectified before the sum, as between two strided "
        "convolutions",
        "missing-step",
        change_model(is_down_rectified=True),
        lambda *_: [Anywhere("(?i)relu|rectif|activation|negative|clamp")],
        equivalents=("activation-kind", "layer-order", "clamp"),
    ),
    "bilinear": Fault(
        "upsampling is bilinear with aligned corners, as in HRNet for segmentation",
        "resize-mode",
        change_model(upsampling="bilinear"),
        lambda *_: [Anywhere("nearest|linear")],
        equivalents=("align-corners", "argument"),
    ),
    "softmax_keypoints": Fault(
        "softmax over the keypoints of a pixel, which is what Softmax2d computes",
        "softmax-axis",
        change_model(softmax_axis=1),
        lambda *_: [Anywhere(r"ax[ei]s|dim")],
        equivalents=("axes-swapped", "reduction-axis", "argument"),
    ),
    "corners": Fault(
        "expected coordinates from -1 at the first pixel to 1 at the last one, as linspace has it",
        "align-corners",
        change_model(are_corners_aligned=True),
        equivalents=(
            "position-offset",
            "constant-factor",
            "constant-offset",
            "scale",
            "argument",
            "input-source",
        ),
    ),
    "sum_reused": Fault(
        "the loop over the branches writes its sums into the list it reads: the coarse sum gets "
        "the fine one",
        "input-source",
        change_model(is_sum_reused=True),
        equivalents=("skip-source", "layer-order", "residual-order"),
    ),
    "visibility_weight": Fault(
        "keypoints are weighted by their visibility: 2 for visible ones, 1 for hidden ones",
        "missing-step",
        change_model(is_visibility_weight=True),
        equivalents=("mask-kind", "loss-weight", "mask-missing", "clamp", "input-source"),
    ),
    "huber": Fault(
        "Huber loss of the coordinates, which is the smooth L1 loss times its threshold",
        "constant-factor",
        change_model(coordinate_loss="huber"),
        lambda *_: [Ratio(BETA)],
        equivalents=("loss-kind", "loss-weight", "loss-threshold", "scale", "argument"),
    ),
    "parent_stopped": Fault(
        "lengths of limbs only move the second end of a limb, the first one has no gradient",
        "gradient-stopped",
        change_model(is_parent_stopped=True),
        equivalents=("missing-term",),
    ),
    "upsampling_averaged": Fault(
        "the upsampling's own backward pass takes the mean of four pixels, not their sum",
        "gradient-scaled",
        change_model(is_upsampling_averaged=True),
        lambda *_: [Ratio(0.25)],
        equivalents=("pooling", "constant-factor", "scale"),
    ),
    "softmax_uncentered": Fault(
        "the backward pass of the softmax multiplies by the probabilities, but does not subtract "
        "the mean",
        "missing-term",
        change_model(is_softmax_uncentered=True),
        equivalents=("gradient-stopped", "gradient-scaled", "straight-through", "missing-step"),
    ),
    "keypoints_flipped": Fault(
        "the head was trained with the keypoints of mirrored images: left and right are exchanged",
        "weight-rows",
        _flip_keypoints,
        lambda *_: [Order(FLIPPED, 1)],
        equivalents=("channel-order", "heads-permuted", "split-order"),
    ),
    "skeleton_one_based": Fault(
        "keypoints of limbs are counted from 1, as COCO's skeleton, but read from 0",
        "row-shift",
        change_model(first_keypoint=0),
        lambda *_: [Anywhere(r"(?i)shift|ind(ex|ices)|offset|rows?\b|position|\b1\b")],
        equivalents=("position-offset", "constant-offset", "input-source", "argument"),
    ),
    "spots_rounded": Fault(
        "Gaussians are around the nearest pixel of a keypoint, as in HRNet's own code",
        "missing-step",
        change_model(are_spots_rounded=True),
        equivalents=("rounding-mode", "quantization-missing", "loss-target", "input-source"),
    ),
    "fused_norms_initial": Fault(
        "norms between the branches have other names in the checkpoint and are not loaded, which "
        "strict=False allows: their weights are 1 and their biases 0",
        "zeroed",
        _skip_fused_norms,
        lambda *_: [Anywhere(r"(?i)fill|\bones?\b|zero|initial|affine|\b[01]\b")],
        equivalents=("affine-missing",),
    ),
    "coordinates_stopped": Fault(
        "coordinates are decoded as in evaluation, from detached heatmaps: their losses train "
        "nothing",
        "gradient-stopped",
        change_model(are_coordinates_stopped=True),
        equivalents=("missing-term",),
    ),
    "pixels_cornered": Fault(
        "keypoints are divided by the stride as they are, as in HRNet's own code, though their "
        "pixels have centers at halves",
        "constant-offset",
        change_model(are_pixels_centered=False),
        equivalents=(
            "position-offset",
            "missing-step",
            "missing-term",
            "align-corners",
            "loss-target",
            "input-source",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("bilinear", "mindspore"),
    ("corners", "mindspore"),
    ("sum_reused", "mindspore"),
    ("softmax_uncentered", "mindspore"),
    ("upsampling_averaged", "mindspore"),
    ("keypoints_flipped", "mindspore"),
    ("down_rectified", "pytorch"),
    ("softmax_keypoints", "pytorch"),
    ("visibility_weight", "pytorch"),
    ("huber", "pytorch"),
    ("parent_stopped", "pytorch"),
    ("skeleton_one_based", "pytorch"),
    ("spots_rounded", "mindspore"),
    ("fused_norms_initial", "pytorch"),
    ("coordinates_stopped", "mindspore"),
    ("pixels_cornered", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "looped": ("", "looped"),
    "written": ("written", ""),
}
