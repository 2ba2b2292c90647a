"""Faults of promptable segmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.promptseg.architecture import EMBED, HEAD_DIM, HEADS, INTERNAL, WINDOWS, Model


def _reset_norms(model: Model) -> Model:
    """Return norms of blocks and of the decoder's layers as they are before training."""
    weights = dict(model.weights)
    for name, values in model.weights.items():
        _, _, layer = name.rpartition(".")[0].rpartition(".")
        is_block = name.startswith(("encoder.", "decoder."))
        if is_block and layer.startswith(("norm", "final_norm")):
            fill = np.ones_like if name.endswith(".weight") else np.zeros_like
            weights[name] = fill(values)
    return replace(model, weights=weights)


def _group_by_head(model: Model) -> Model:
    """Return queries, keys and values of each head behind each other."""
    weights = dict(model.weights)
    for n in range(len(WINDOWS)):
        for kind in ("weight", "bias"):
            name = f"encoder.{n}.qkv.{kind}"
            values = weights[name]
            parts = values.reshape(3, HEADS, HEAD_DIM, *values.shape[1:]).swapaxes(0, 1)
            weights[name] = np.ascontiguousarray(parts).reshape(values.shape)
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "windows_reshaped": Fault(
        "windows are cut by a reshape without a transposition, and put together so, too: a window "
        "is two whole rows of cells",
        "axes-swapped",
        change_model(are_windows_reshaped=True),
        equivalents=(
            "missing-step",
            "split-order",
            "heads-permuted",
            "channel-order",
            "input-order",
            "row-shift",
            "input-source",
        ),
    ),
    "rows_first": Fault(
        "coordinates of the image's cells are (y, x), as meshgrid gives them; those of points are "
        "(x, y)",
        "input-order",
        change_model(are_rows_first=True),
        equivalents=("axes-swapped", "channel-order", "heads-permuted", "input-source", "argument"),
    ),
    "dice_squared": Fault(
        "dice has squares in its denominator, as V-Net's",
        "loss-kind",
        change_model(is_dice_squared=True),
        equivalents=("missing-step", "norm-kind", "activation-kind", "input-source"),
    ),
    "measured_attached": Fault(
        "the measured IoU, the target of the predicted one, has a gradient",
        "gradient-stopped",
        change_model(is_measured_attached=True),
        equivalents=("missing-term",),
    ),
    "norms_initial": Fault(
        "layer norms keep ones and zeros, as the converter does not know that their weight and "
        "bias are gamma and beta here",
        "zeroed",
        _reset_norms,
        lambda *_: [
            Anywhere(
                r"(?i)fill|initial|constant|equal|zero|\bones?\b|affine|without|no weight|"
                r"(?<![\w.])1(?:\.0*)?(?![\w.]*\w)"
            )
        ],
        equivalents=("affine-missing",),
    ),
    "sizes_given": Fault(
        "boxes are given as (x, y, width, height), as COCO's annotations have them",
        "batch",
        change_model(are_sizes_given=True),
        equivalents=("input-source", "missing-term", "missing-step", "constant-offset"),
    ),
    "scale_of_width": Fault(
        "scores of attention with a smaller inner width are divided by the root of the full "
        "width's head",
        "scale",
        change_model(is_scale_of_width=True),
        lambda *_: [Ratio((INTERNAL / EMBED) ** 0.5)],
        equivalents=("constant-factor", "argument"),
    ),
    "images_tiled": Fault(
        "image embeddings are repeated as 0 1 0 1 for the prompts, not as 0 0 1 1",
        "axes-swapped",
        change_model(are_images_tiled=True),
        equivalents=(
            "heads-permuted",
            "input-order",
            "row-shift",
            "split-order",
            "channel-order",
            "input-source",
            "missing-step",
            "argument",
        ),
    ),
    "padding_located": Fault(
        "points of padding keep the Fourier features of their place, to which the vector of "
        "padding is added",
        "mask-missing",
        change_model(is_padding_located=True),
        equivalents=("missing-step", "missing-term", "mask-kind", "input-source"),
    ),
    "best_by_score": Fault(
        "the best of three masks is that with the highest predicted IoU, as in inference, not "
        "that with the smallest loss",
        "input-source",
        change_model(is_best_by_score=True),
        equivalents=("missing-step", "loss-target", "loss-reduction", "scan-direction"),
    ),
    "variance_constant": Fault(
        "the own backward pass of norms of channels takes the variance for a constant",
        "gradient-stopped",
        change_model(is_variance_constant=True),
        equivalents=("missing-term", "missing-step", "gradient-scaled"),
    ),
    "rows_by_head": Fault(
        "rows of queries, keys and values are in groups of a head, as Megatron's checkpoints have "
        "them, and are loaded as if all queries were first",
        "weight-rows",
        _group_by_head,
        lambda *_: [Anywhere("(?i)order|row|interleav|alternat|block|permut|exchang|swap|split")],
        equivalents=("split-order", "heads-permuted", "channel-order", "axes-swapped"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("windows_reshaped", "mindspore"),
    ("rows_first", "mindspore"),
    ("dice_squared", "mindspore"),
    ("measured_attached", "mindspore"),
    ("norms_initial", "mindspore"),
    ("sizes_given", "mindspore"),
    ("scale_of_width", "pytorch"),
    ("images_tiled", "pytorch"),
    ("padding_located", "pytorch"),
    ("best_by_score", "pytorch"),
    ("variance_constant", "pytorch"),
    ("rows_by_head", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
