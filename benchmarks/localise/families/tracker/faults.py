"""Faults of the siamese tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model
from families.tracker.architecture import ANCHORS, HARD_CROP, LEVELS, Model


def _forget_statistics(model: Model) -> Model:
    """Leave the stem's running statistics as a batch norm is built with."""
    initial = {
        "stem.norm.mean": np.zeros_like(model.weights["stem.norm.mean"]),
        "stem.norm.variance": np.ones_like(model.weights["stem.norm.variance"]),
    }
    return replace(model, weights={**model.weights, **initial})


def _put_anchors_first(model: Model) -> Model:
    """Give the heads of deltas rows in the order anchor * 4 + coordinate."""
    weights = dict(model.weights)
    for n in range(LEVELS):
        for name in (f"loc.{n}.out.weight", f"loc.{n}.out.bias"):
            rows = model.weights[name]
            parts = rows.reshape(4, ANCHORS, *rows.shape[1:]).swapaxes(0, 1)
            weights[name] = np.ascontiguousarray(parts.reshape(rows.shape))
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "crop_fixed": Fault(
        "the template's crop begins at the cell 4 of the published code, whose features are 15 x "
        "15 cells, not at the one that puts it in the middle",
        "position-offset",
        change_model(crop_start=HARD_CROP),
        equivalents=("row-shift", "padding-mode", "causal-shift", "input-source", "argument"),
    ),
    "ignored_negative": Fault(
        "whatever has not label 1 is background: anchors with label -1 count in the cross entropy",
        "ignore-index",
        change_model(are_ignored_negative=True),
        equivalents=(
            "mask-missing",
            "mask-kind",
            "loss-reduction",
            "loss-target",
            "missing-step",
            "input-source",
        ),
    ),
    "classes_unbalanced": Fault(
        "the cross entropy is the mean over all anchors with a label, not half the mean of objects "
        "and half the mean of background",
        "loss-reduction",
        change_model(are_classes_balanced=False),
        equivalents=(
            "loss-weight",
            "pooling",
            "constant-factor",
            "scale",
            "missing-step",
            "input-source",
        ),
    ),
    "kernel_unturned": Fault(
        "the correlation's own backward pass correlates gradients with the kernel as it is, where "
        "it has to be turned around in rows and columns",
        "kernel-flipped",
        change_model(is_kernel_flipped_back=False),
        equivalents=("scan-direction", "missing-step", "gradient-scaled", "input-source"),
    ),
    "statistics_forgotten": Fault(
        "the stem's running statistics are not loaded, because the frameworks name them "
        "differently: its frozen norm has the mean 0 and the variance 1 that it was built with",
        "zeroed",
        _forget_statistics,
        lambda *_: [
            Anywhere(r"(?i)zero|filled|\bone|(?<![\w.])[01](?![\w.])|norm|mean|varian|statistic")
        ],
        equivalents=(
            "running-statistics",
            "norm-missing",
            "missing-step",
            "missing-term",
            "input-source",
        ),
    ),
    "template_stopped": Fault(
        "the template's features are constants, as the tracker keeps them from the first frame: "
        "the backbone is trained by the search region only",
        "gradient-stopped",
        change_model(is_template_stopped=True),
        equivalents=("missing-term",),
    ),
    "fusion_linear": Fault(
        "weights of levels are a ReLU divided by its sum, as EfficientDet's fast fusion has them, "
        "not a softmax",
        "activation-kind",
        change_model(is_fusion_linear=True),
        equivalents=("missing-step", "softmax-axis", "input-source", "argument"),
    ),
    "centers_transposed": Fault(
        "meshgrid has its default order of axes, 'ij': x of the anchors grows with the row",
        "axes-swapped",
        change_model(are_centers_transposed=True),
        equivalents=("input-order", "split-order", "position-offset", "input-source", "argument"),
    ),
    "window_interleaved": Fault(
        "the window is repeated number by number, as for scores with the anchors last, not as a "
        "whole for each anchor",
        "axes-swapped",
        change_model(is_window_interleaved=True),
        equivalents=(
            "input-order",
            "split-order",
            "channel-order",
            "heads-permuted",
            "position-offset",
            "input-source",
            "argument",
        ),
    ),
    "backbone_tenth": Fault(
        "the backbone's learning rate of a tenth is written as a factor of its gradient: what the "
        "necks send back is multiplied by 0.1",
        "gradient-scaled",
        change_model(backbone_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.backbone_gradient / clean.backbone_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "deltas_by_anchor": Fault(
        "heads of deltas come from a checkpoint whose rows are anchor by anchor, each with its "
        "four coordinates, and are loaded without ordering them",
        "weight-rows",
        _put_anchors_first,
        lambda *_: [Anywhere("(?i)order|row|channel|exchang|swap|permut|ax[ei]s|interleav")],
        equivalents=(
            "axes-swapped",
            "channel-order",
            "heads-permuted",
            "split-order",
            "input-order",
        ),
    ),
    "colors_reversed": Fault(
        "images are read by PIL, whose colors are red, green, blue; mean and deviation are those "
        "of blue, green, red, as OpenCV reads them",
        "channel-order",
        change_model(are_colors_reversed=True),
        equivalents=("batch", "input-order", "scan-direction"),
    ),
    "beta_default": Fault(
        "smooth L1 of deltas has the default threshold of 1, not 1 / 9",
        "loss-threshold",
        change_model(beta=1.0),
        lambda faulty, clean: [Values(faulty.beta, clean.beta)],
        equivalents=("argument",),
    ),
    "penalty_stopped": Fault(
        "the penalty of a change of size is a constant for the gradient, as it is where the "
        "tracker computes it outside of the framework",
        "gradient-stopped",
        change_model(is_penalty_stopped=True),
        equivalents=("missing-term",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("crop_fixed", "mindspore"),
    ("ignored_negative", "mindspore"),
    ("classes_unbalanced", "mindspore"),
    ("kernel_unturned", "mindspore"),
    ("statistics_forgotten", "mindspore"),
    ("template_stopped", "mindspore"),
    ("fusion_linear", "pytorch"),
    ("centers_transposed", "pytorch"),
    ("window_interleaved", "pytorch"),
    ("backbone_tenth", "pytorch"),
    ("deltas_by_anchor", "pytorch"),
    ("colors_reversed", "pytorch"),
    ("beta_default", "mindspore"),
    ("penalty_stopped", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "joined": ("", "joined"),
    "written": ("written", ""),
    "both": ("written", "joined"),
}
