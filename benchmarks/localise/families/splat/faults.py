"""Faults of Gaussian splatting."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model, change_weight
from families.splat.architecture import HARMONICS, POINTS


def _read_channels_first(weight: np.ndarray) -> np.ndarray:
    """Return the coefficients as they are read from rows in which colors come first."""
    return weight.transpose(0, 2, 1).reshape(POINTS, HARMONICS - 1, 3)


def _read_axes_in_order(weight: np.ndarray) -> np.ndarray:
    """Return the coefficients as they are read with those of degree 1 in the order x, y, z."""
    return weight[:, [2, 0, 1, *range(3, HARMONICS - 1)]]


FAULTS: Mapping[str, Fault] = {
    "compensation_missing": Fault(
        "opacities are not compensated for the blur: gsplat's default mode is 'classic'",
        "missing-step",
        change_model(is_compensated=False),
        equivalents=("missing-term", "input-source", "argument"),
    ),
    "rotation_transposed": Fault(
        "rotations of points are transposed, as matrices of the published kernels, which are "
        "column-major, look",
        "axes-swapped",
        change_model(is_rotation_transposed=True),
        equivalents=("weight-transposed",),
    ),
    "near_plane": Fault(
        "the near plane is gsplat's default, 0.01, not 0.2 as in the published kernels",
        "argument",
        change_model(near=0.01),
        lambda *_: [
            Anywhere(
                r"(?i)mask|hid|fill|greater|threshold|near|clamp|point|row|shown|seen|visible|"
                r"(?<![\w.])0\.(?:01|2)(?!\d)"
            )
        ],
        equivalents=("mask-kind", "mask-missing", "input-source"),
    ),
    "normalization_passed": Fault(
        "the backward pass of normalized quaternions returns the gradient as it comes, as the "
        "published kernels do",
        "straight-through",
        change_model(is_normalization_passed=True),
        equivalents=("gradient-scaled", "norm-missing", "missing-step", "missing-term"),
    ),
    "quaternions_scalar_last": Fault(
        "quaternions are loaded as they are in libraries that write (x, y, z, w)",
        "channel-order",
        change_weight("quaternions", lambda weight: np.roll(weight, -1, axis=1)),
        lambda *_: [
            Anywhere("(?i)order|channel|column|exchang|swap|permut|split|input|roll|shift|rotat")
        ],
        equivalents=("input-order", "weight-rows", "heads-permuted", "split-order", "row-shift"),
    ),
    "hidden_counted": Fault(
        "the L1 distance is the mean of all pixels, those that do not count being zeros",
        "loss-reduction",
        change_model(are_hidden_counted=True),
        equivalents=(
            "loss-weight",
            "constant-factor",
            "scale",
            "pooling",
            "mask-missing",
            "missing-step",
        ),
    ),
    "views_reversed": Fault(
        "directions of harmonics are from points to cameras",
        "constant-factor",
        change_model(are_views_reversed=True),
        lambda *_: [
            Anywhere(
                r"(?i)(?<![\w.])-(?:1(?:\.0+\d*)?|0\.99\d*)(?![\w.])|negat|sign|minus|order|exchang"
            )
        ],
        equivalents=("scale", "input-order", "missing-step", "input-source"),
    ),
    "pixel_corners": Fault(
        "pixels are at whole numbers, their upper left corners, not at their centers",
        "position-offset",
        change_model(pixel_center=0.0),
        lambda *_: [Anywhere(r"(?i)shift|offset|added|constant|position|(?<![\w.])-?0\.5(?!\d)")],
        equivalents=("constant-offset", "missing-step", "missing-term", "input-source", "argument"),
    ),
    "covariance_gradient": Fault(
        "the own backward pass of the inverse takes the upper triangle of a gradient that both "
        "triangles share: the entry beside the diagonal is halved",
        "gradient-scaled",
        change_model(is_covariance_gradient_halved=True),
        lambda *_: [
            Anywhere(
                r"(?i)(?<![\w.])(?:0\.5|0\.49\d*|0\.50\d*|2|2\.0\d*|1\.99\d*)(?![\w.])|half|halv|"
                "triang|diagonal|element|entr|column|row|position|share"
            )
        ],
        equivalents=("missing-term", "constant-factor", "scale", "missing-step", "mask-kind"),
    ),
    "views_detached": Fault(
        "directions of harmonics are detached, as splatfacto has them",
        "gradient-stopped",
        change_model(are_views_detached=True),
        equivalents=("missing-term",),
    ),
    "harmonics_colors_first": Fault(
        "coefficients of higher harmonics come from a PLY file, whose rows have all of a color "
        "behind each other, and are not transposed",
        "axes-swapped",
        change_weight("harmonics.rest", _read_channels_first),
        equivalents=(
            "weight-transposed",
            "channel-order",
            "input-order",
            "heads-permuted",
            "split-order",
            "weight-rows",
        ),
    ),
    "depths_distances": Fault(
        "sparse depths are distances from the camera, not along its axis",
        "loss-target",
        change_model(are_depths_distances=True),
        equivalents=("batch", "input-source"),
    ),
    "opacity_gradient": Fault(
        "the own backward pass of compensated opacities, copied from kernels without compensation, "
        "does not multiply the gradient of opacities by it",
        "gradient-scaled",
        change_model(is_opacity_gradient_full=True),
        lambda *_: [
            Anywhere(
                "(?i)element|entr|row|point|each|opacit|compensat|passe|unchanged|straight|as it"
            )
        ],
        equivalents=("straight-through", "missing-step"),
    ),
    "harmonics_axes_in_order": Fault(
        "coefficients of degree 1 come from a library whose harmonics are in the order x, y, z, "
        "not y, z, x",
        "channel-order",
        change_weight("harmonics.rest", _read_axes_in_order),
        lambda *_: [
            Anywhere("(?i)order|channel|column|exchang|swap|permut|split|input|roll|shift|rotat")
        ],
        equivalents=("input-order", "weight-rows", "heads-permuted", "split-order", "row-shift"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("compensation_missing", "mindspore"),
    ("rotation_transposed", "mindspore"),
    ("near_plane", "mindspore"),
    ("normalization_passed", "mindspore"),
    ("quaternions_scalar_last", "mindspore"),
    ("hidden_counted", "mindspore"),
    ("views_reversed", "pytorch"),
    ("pixel_corners", "pytorch"),
    ("covariance_gradient", "pytorch"),
    ("views_detached", "pytorch"),
    ("harmonics_colors_first", "pytorch"),
    ("depths_distances", "pytorch"),
    ("opacity_gradient", "mindspore"),
    ("harmonics_axes_in_order", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "inria": ("", "inria"),
    "unsorted": ("unsorted", ""),
    "both": ("unsorted", "inria"),
}
