"""Faults of the regressor of a body model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.bodymesh.architecture import BATCH, JOINTS, PARENTS, POSE_FEATURES, SIGMA, Model
from families.fault import Fault, change_model, change_weight


def _reshape_directions(directions: np.ndarray) -> np.ndarray:
    """Return directions of a file, (VERTICES, 3, POSE_FEATURES), reshaped and not transposed."""
    return directions.T.reshape(POSE_FEATURES, -1)


def _order_depth_first() -> list[int]:
    """Return joints in the order in which a file of a scene has them: children behind a joint."""

    def walk(joint: int) -> list[int]:
        children = [child for child in range(JOINTS) if PARENTS[child] == joint]
        return [joint] + [other for child in children for other in walk(child)]

    return walk(0)


def _order_skinning(skinning: np.ndarray) -> np.ndarray:
    return skinning[:, _order_depth_first()]


def _claim_share_of_known(_: Model, clean: Model) -> list[Ratio]:
    *_, is_known = clean.batch()
    return [Ratio(float(is_known.sum()) / BATCH)]


FAULTS: Mapping[str, Fault] = {
    "axes_rows": Fault(
        "the axes of Gram-Schmidt become rows of a rotation, as PyTorch3D has them, not columns",
        "axes-swapped",
        change_model(are_axes_rows=True),
        equivalents=(
            "argument",
            "missing-step",
            "weight-transposed",
            "rope-direction",
            "channel-order",
            "split-order",
            "heads-permuted",
            "input-order",
        ),
    ),
    "padding_averaged": Fault(
        "the padding of a list of neighbours, which is vertex 0, is added to their sum",
        "mask-missing",
        change_model(is_padding_averaged=True),
        equivalents=("missing-step", "mask-kind", "pooling", "input-source"),
    ),
    "state_detached": Fault(
        "parameters are detached at the begin of each iteration, as in a model with losses of all "
        "iterations; here only the last one has losses",
        "gradient-stopped",
        change_model(is_state_detached=True),
        equivalents=("missing-term",),
    ),
    "directions_reshaped": Fault(
        "pose directions of a file, (vertices, 3, features), are reshaped to (features, vertices * "
        "3), where they were to be transposed",
        "weight-transposed",
        change_weight("body.pose_directions", _reshape_directions),
        lambda *_: [Anywhere("(?i)transpos|ax[ei]s|order|reshap|permut|row|swap|exchang")],
        equivalents=("axes-swapped", "weight-rows", "split-order", "channel-order"),
    ),
    "robust_unscaled": Fault(
        "Geman-McClure's function is r^2 / (r^2 + sigma^2), without sigma^2 as a factor",
        "constant-factor",
        change_model(is_robust_unscaled=True),
        lambda *_: [Ratio(SIGMA**-2)],
        equivalents=("scale", "missing-step", "loss-weight", "loss-kind"),
    ),
    "keypoints_mirrored": Fault(
        "keypoints in the image are those of a data set that has the left side first, and are not "
        "exchanged",
        "batch",
        change_model(are_keypoints_mirrored=True),
        equivalents=(
            "loss-target",
            "input-order",
            "row-shift",
            "heads-permuted",
            "channel-order",
            "input-source",
        ),
    ),
    "camera_shift_unscaled": Fault(
        "the camera's shift is added behind the scale, not before it",
        "layer-order",
        change_model(is_camera_shift_unscaled=True),
        equivalents=(
            "missing-step",
            "constant-offset",
            "position-offset",
            "scale",
            "constant-factor",
            "input-source",
        ),
    ),
    "markers_from_one": Fault(
        "numbers of vertices for nose and feet are those of a tool that begins with 1",
        "row-shift",
        change_model(are_markers_from_one=True),
        equivalents=("position-offset", "label-shift", "input-source", "argument"),
    ),
    "mean_of_all": Fault(
        "squares of persons without a known body are made zero, but count in the mean of rotations",
        "loss-reduction",
        change_model(is_mean_of_all=True),
        _claim_share_of_known,
        equivalents=(
            "constant-factor",
            "scale",
            "loss-weight",
            "pooling",
            "mask-missing",
            "missing-step",
        ),
    ),
    "square_gradient": Fault(
        "the own backward pass of half a square forgets the half: it is twice its input",
        "gradient-scaled",
        change_model(is_square_gradient_whole=True),
        lambda *_: [Ratio(2.0)],
        equivalents=("constant-factor", "scale"),
    ),
    "skinning_depth_first": Fault(
        "skinning weights come from the file of a scene, which has joints depth first, and are "
        "loaded as they are",
        "weight-rows",
        change_weight("body.skinning", _order_skinning),
        lambda *_: [Anywhere("(?i)order|row|column|channel|permut|swap|exchang|ax[ei]s")],
        equivalents=(
            "channel-order",
            "heads-permuted",
            "input-order",
            "split-order",
            "experts-permuted",
            "axes-swapped",
        ),
    ),
    "colors_reversed": Fault(
        "images are read by OpenCV and not converted: blue is first, not red",
        "batch",
        change_model(are_colors_reversed=True),
        equivalents=(
            "channel-order",
            "input-order",
            "scan-direction",
            "axes-swapped",
            "input-source",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("axes_rows", "mindspore"),
    ("padding_averaged", "mindspore"),
    ("state_detached", "mindspore"),
    ("directions_reshaped", "mindspore"),
    ("robust_unscaled", "mindspore"),
    ("keypoints_mirrored", "mindspore"),
    ("camera_shift_unscaled", "pytorch"),
    ("markers_from_one", "pytorch"),
    ("mean_of_all", "pytorch"),
    ("square_gradient", "pytorch"),
    ("skinning_depth_first", "pytorch"),
    ("colors_reversed", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
