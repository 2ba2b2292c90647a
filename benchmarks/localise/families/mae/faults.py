"""Faults of the masked autoencoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model
from families.mae.architecture import COLORS, PATCH, PIXELS, Model


def _put_colors_first(model: Model) -> Model:
    """Return a pixel head with rows (color, row, column)."""
    weights = dict(model.weights)
    for kind in ("weight", "bias"):
        values = weights[f"decoder.pixels.{kind}"]
        rows = np.arange(PIXELS).reshape(PATCH, PATCH, COLORS).transpose(2, 0, 1).ravel()
        weights[f"decoder.pixels.{kind}"] = np.ascontiguousarray(values[rows])
    return replace(model, weights=weights)


def _exchange_scales(model: Model) -> Model:
    """Return blocks with the LayerScale of the mlp behind the attention, and the other way."""
    weights = dict(model.weights)
    for name in model.weights:
        if name.endswith("scale1"):
            other = f"{name[:-1]}2"
            weights[name], weights[other] = model.weights[other], model.weights[name]
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "variance_biased": Fault(
        "the variance of a patch's pixels is divided by their number, the default of MindSpore's "
        "var, not by one less",
        "biased-variance",
        change_model(is_variance_biased=True),
        lambda *_: [
            Anywhere(
                r"(?i)bias|bessel|varian|correction|freedom|ddof|n - 1|"
                r"(?<![\w.])(?:0\.97[89]\d*|1\.021\d*|0\.989\d*|1\.010\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=("argument", "constant-factor", "scale"),
    ),
    "mask_shuffled": Fault(
        "the mask of the loss stays in the order of the permutation: it is not put back by "
        "ids_restore",
        "mask-kind",
        change_model(is_mask_shuffled=True),
        equivalents=(
            "missing-step",
            "input-order",
            "input-source",
            "mask-shifted",
            "row-shift",
            "axes-swapped",
        ),
    ),
    "teacher_attached": Fault(
        "latent targets have a gradient to the patch embedding and the class token, which the "
        "teacher shares: its stop_gradient is missing",
        "gradient-stopped",
        change_model(is_teacher_attached=True),
        equivalents=("missing-term",),
    ),
    "pixel_rows": Fault(
        "the pixel head comes from a checkpoint whose patches are (color, row, column), as unfold "
        "has them, and is loaded as (row, column, color)",
        "weight-rows",
        _put_colors_first,
        lambda *_: [Anywhere("(?i)order|row|interleav|block|permut|exchang|swap|transpos|ax[ei]s")],
        equivalents=(
            "channel-order",
            "axes-swapped",
            "split-order",
            "heads-permuted",
            "experts-permuted",
            "weight-transposed",
        ),
    ),
    "sizes_columns_first": Fault(
        "sizes of images are given as (columns, rows), as PIL has them",
        "batch",
        change_model(are_columns_first=True),
        equivalents=(
            "input-order",
            "channel-order",
            "axes-swapped",
            "heads-permuted",
            "row-shift",
            "scan-direction",
            "input-source",
            "argument",
        ),
    ),
    "targets_averaged_first": Fault(
        "outputs of the teacher's last blocks are averaged, then normed, but not normed before",
        "norm-missing",
        change_model(are_targets_averaged_first=True),
        lambda *_: [Anywhere("(?i)norm|mean|variance|order|identity|missing|left out|without")],
        equivalents=("layer-order", "missing-step", "input-source"),
    ),
    "order_repeated": Fault(
        "the decoder puts patches in order by the permutation itself, not by its inverse",
        "input-source",
        change_model(is_order_repeated=True),
        equivalents=(
            "input-order",
            "argument",
            "axes-swapped",
            "heads-permuted",
            "weight-rows",
            "row-shift",
            "missing-step",
        ),
    ),
    "positions_rows_first": Fault(
        "positions have the row in their first half of channels and the column in the second one; "
        "in MAE's, the column goes first",
        "channel-order",
        change_model(are_rows_first=True),
        equivalents=(
            "time-embedding-order",
            "axes-swapped",
            "input-order",
            "split-order",
            "heads-permuted",
            "row-shift",
            "weight-rows",
            "argument",
            "input-source",
        ),
    ),
    "mean_of_images": Fault(
        "losses are means over images of means over their patches: patches of small images count "
        "more",
        "loss-reduction",
        change_model(is_mean_of_images=True),
        equivalents=("loss-weight", "pooling", "reduction-axis", "missing-step", "input-source"),
    ),
    "scale_undifferentiated": Fault(
        "a fused LayerScale has its own backward pass, which passes the gradient on without the "
        "scale",
        "gradient-scaled",
        change_model(is_scale_differentiated=False),
        equivalents=("missing-step", "straight-through"),
    ),
    "scales_exchanged": Fault(
        "the two LayerScales of each block are exchanged on load",
        "weight-swapped",
        _exchange_scales,
        equivalents=("input-source", "input-order"),
    ),
    "mask_padded_behind": Fault(
        "the decoder's mask of keys is padded for the class token behind the patches, not in front "
        "of them",
        "mask-shifted",
        change_model(is_mask_padded_behind=True),
        lambda *_: [Anywhere(r"(?i)mask|hid|fill|pad|shift|see|key|column|order|\b1\b")],
        equivalents=(
            "mask-kind",
            "mask-missing",
            "padding-mode",
            "position-offset",
            "row-shift",
            "input-order",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("variance_biased", "mindspore"),
    ("mask_shuffled", "mindspore"),
    ("teacher_attached", "mindspore"),
    ("pixel_rows", "mindspore"),
    ("sizes_columns_first", "mindspore"),
    ("targets_averaged_first", "mindspore"),
    ("order_repeated", "pytorch"),
    ("positions_rows_first", "pytorch"),
    ("mean_of_images", "pytorch"),
    ("scale_undifferentiated", "pytorch"),
    ("scales_exchanged", "pytorch"),
    ("mask_padded_behind", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
