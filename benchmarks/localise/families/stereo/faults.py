"""Faults of stereo depth estimation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model, change_weight
from families.stereo.architecture import BRANCH, FEATURES, GROUPS, Model


def _put_coarse_branch_first(weight: np.ndarray) -> np.ndarray:
    """Return the weight as it reads (blocks, coarse branch, fine branch)."""
    blocks, fine, coarse = np.split(weight, [-2 * BRANCH, -BRANCH], axis=1)
    return np.concatenate([blocks, coarse, fine], axis=1)


def _exchange_heads(model: Model) -> Model:
    """Give the heads of both costs each other's weights."""
    weights = dict(model.weights)
    for name in model.weights:
        if name.startswith("costs.0."):
            other = name.replace("costs.0.", "costs.1.")
            weights[name], weights[other] = weights[other], weights[name]
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "corners_aligned": Fault(
        "costs are upsampled with their corners aligned, the default when PSMNet was written",
        "align-corners",
        change_model(are_corners_aligned=True),
        equivalents=("resize-mode", "argument", "position-offset"),
    ),
    "groups_interleaved": Fault(
        "channels are cut into groups as if a group had every third channel, not those in a row",
        "axes-swapped",
        change_model(are_groups_interleaved=True),
        equivalents=(
            "split-order",
            "reduction-axis",
            "channel-order",
            "input-order",
            "heads-permuted",
        ),
    ),
    "far_counted": Fault(
        "labels beyond the largest disparity count: validity is label > 0 only",
        "mask-missing",
        change_model(are_far_counted=True),
        equivalents=("mask-kind", "missing-step", "loss-reduction"),
    ),
    "correlation_gradient": Fault(
        "the own backward pass of the correlation repeats a group's gradient without dividing it "
        "by the group's channels, of which the mean is taken",
        "gradient-scaled",
        change_model(is_correlation_gradient_summed=True),
        lambda *_: [Ratio(FEATURES / GROUPS)],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "kernel_depth_last": Fault(
        "the kernel of the transposed convolution comes from code whose volumes are (rows, "
        "columns, disparities), not (disparities, rows, columns)",
        "kernel-axes",
        change_weight("hourglass.up.weight", lambda weight: weight.transpose(0, 1, 4, 2, 3)),
        equivalents=("axes-swapped", "weight-transposed"),
    ),
    "edges_summed": Fault(
        "the smoothness takes the sum of the colors' gradients in its exponential, not the mean",
        "constant-factor",
        change_model(are_edges_summed=True),
        lambda *_: [
            Anywhere(r"(?i)sum|mean|average|(?<![\w.])(?:3(?:\.0+\d*)?|2\.99\d*|0\.33\d*)(?![\w.])")
        ],
        equivalents=("scale", "pooling", "reduction-axis", "missing-step"),
    ),
    "volume_rolled": Fault(
        "right features are rolled along a row: columns come in from the other end, where the "
        "volume is to be zero",
        "padding-mode",
        change_model(is_volume_rolled=True),
        equivalents=("mask-missing", "missing-step", "input-source"),
    ),
    "cost_similarity": Fault(
        "the softmax is that of the costs, as PSMNet has it, not of the negative ones of GC-Net",
        "constant-factor",
        change_model(is_cost_similarity=True),
        lambda *_: [
            Anywhere(r"(?i)(?<![\w.])-(?:1(?:\.0+\d*)?|0\.99\d*)(?![\w.])|negat|sign|minus")
        ],
        equivalents=("scale", "missing-step", "activation-kind", "argument"),
    ),
    "consistency_attached": Fault(
        "the right disparity is no constant in the consistency loss: it gets a gradient, too",
        "gradient-stopped",
        change_model(is_consistency_attached=True),
        equivalents=("missing-term",),
    ),
    "warp_gradient": Fault(
        "the own backward pass of the warp has the gradient of its places for that of disparities, "
        "which are subtracted from columns: its sign is wrong",
        "gradient-scaled",
        change_model(is_warp_gradient_positive=True),
        lambda *_: [
            Anywhere(r"(?i)(?<![\w.])-(?:1(?:\.0+\d*)?|0\.99\d*)(?![\w.])|negat|sign|minus")
        ],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "branches_reversed": Fault(
        "the convolution behind the pyramid comes from a checkpoint that joins the coarse branch "
        "first, as PSMNet does",
        "input-order",
        change_weight("fusion.weight", _put_coarse_branch_first),
        lambda *_: [
            Anywhere("(?i)order|channel|column|exchang|swap|permut|revers|split|input|roll|shift")
        ],
        equivalents=("channel-order", "weight-rows", "heads-permuted", "split-order"),
    ),
    "labels_upside_down": Fault(
        "disparities are read from PFM files, whose last row comes first, without flipping them",
        "loss-target",
        change_model(are_labels_upside_down=True),
        equivalents=("batch", "input-order", "row-shift", "scan-direction"),
    ),
    "mask_unmirrored": Fault(
        "the right image's photometric loss has images and disparity mirrored, but not the mask",
        "mask-shifted",
        change_model(is_mask_mirrored=False),
        equivalents=("mask-kind", "missing-step", "scan-direction", "row-shift", "input-source"),
    ),
    "volume_rightward": Fault(
        "the volume compares a left column x with the right one at x + d, as if the images were "
        "exchanged",
        "position-offset",
        change_model(is_volume_leftward=False),
        equivalents=(
            "row-shift",
            "causal-shift",
            "scan-direction",
            "input-order",
            "input-source",
            "padding-mode",
        ),
    ),
    "heads_exchanged": Fault(
        "the converter pairs parameters by their order and shape: the heads of both costs, which "
        "are alike, have each other's weights",
        "weight-swapped",
        _exchange_heads,
        equivalents=("input-source", "input-order"),
    ),
    "sampler_default": Fault(
        "the warp's sampler does not align corners, its default since version 1.3, though places "
        "are divided by the size minus one",
        "align-corners",
        change_model(are_warp_corners_aligned=False),
        lambda *_: [Anywhere("(?i)corner|sampl|interpol|linear|grid|coord|position|shift|offset")],
        equivalents=("position-offset", "resize-mode", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("corners_aligned", "mindspore"),
    ("groups_interleaved", "mindspore"),
    ("far_counted", "mindspore"),
    ("correlation_gradient", "mindspore"),
    ("kernel_depth_last", "mindspore"),
    ("edges_summed", "mindspore"),
    ("volume_rolled", "pytorch"),
    ("cost_similarity", "pytorch"),
    ("consistency_attached", "pytorch"),
    ("warp_gradient", "pytorch"),
    ("branches_reversed", "pytorch"),
    ("labels_upside_down", "pytorch"),
    ("mask_unmirrored", "mindspore"),
    ("volume_rightward", "pytorch"),
    ("heads_exchanged", "mindspore"),
    ("sampler_default", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "openstereo": ("", "openstereo"),
    "written": ("written", ""),
    "both": ("written", "openstereo"),
}
