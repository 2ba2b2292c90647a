"""Faults of the classifier with windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.swin.architecture import BLOCKS, HEADS, KEEP, STAGES, Model


def _read_by_head(model: Model) -> Model:
    """Cut the joined rows of q, k and v as if those of each head lay next to each other."""
    weights = dict(model.weights)
    for stage in range(STAGES):
        for n in range(BLOCKS):
            path = f"stages.{stage}.blocks.{n}.attention"
            for kind in ("weight", "bias"):
                names = [f"{path}.{name}.{kind}" for name in "qkv"]
                joined = np.concatenate([model.weights[name] for name in names])
                by_head = joined.reshape(HEADS[stage], len(names), -1, *joined.shape[1:])
                for name, rows in zip(names, by_head.swapaxes(0, 1), strict=True):
                    weights[name] = rows.reshape(model.weights[name].shape)
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "relation_reversed": Fault(
        "relative positions of key to query, not of query to key",
        "relative-bias",
        change_model(is_relation_reversed=True),
        equivalents=("position-offset", "input-order", "axes-swapped", "input-source"),
    ),
    "bias_scaled": Fault(
        "scores are scaled after their relative bias was added, not before",
        "layer-order",
        change_model(is_bias_scaled=True),
        equivalents=("constant-factor", "scale", "relative-bias", "weight-scaled", "input-source"),
    ),
    "mask_of_images": Fault(
        "masks of windows repeated window by window for a batch laid out image by image",
        "mask-kind",
        change_model(is_mask_of_images=True),
        equivalents=("axes-swapped", "input-order", "input-source", "heads-permuted", "row-shift"),
    ),
    "shift_repeated": Fault(
        "shifted windows are rolled again in the same direction, not back",
        "row-shift",
        change_model(is_shift_repeated=True),
        equivalents=("argument", "constant-factor"),
    ),
    "merged_by_row": Fault(
        "the four merged neighbors joined row by row, not column by column",
        "axes-swapped",
        change_model(is_merged_by_row=True),
        equivalents=("input-order", "channel-order", "split-order", "input-source"),
    ),
    "kept_unscaled": Fault(
        "drop path does not divide the kept branches by their probability",
        "residual-scale",
        change_model(is_kept_scaled=False),
        lambda *_: [Ratio(KEEP)],
        equivalents=("constant-factor", "scale", "missing-step", "dropout"),
    ),
    "pooled_first": Fault(
        "the mean of the tokens is taken before the last norm, as ConvNeXt does, not behind it",
        "layer-order",
        change_model(is_pooled_first=True),
        equivalents=("input-source",),
    ),
    "others_smoothed": Fault(
        "the smoothed share is divided among the other classes, as MindSpore's model zoo does",
        "label-smoothing",
        change_model(are_others_smoothed=True),
        lambda *_: [Anywhere(r"smooth|0\.9\b|0\.91|0\.011|0\.01\b|target")],
        equivalents=("loss-target", "argument", "constant-factor", "constant-offset"),
    ),
    "tables_stopped": Fault(
        "relative biases were looked up once, outside of the graph: no gradient to their tables",
        "gradient-stopped",
        change_model(are_tables_stopped=True),
    ),
    "drop_gradient": Fault(
        "the backward pass of drop path does not divide by the probability, the forward pass does",
        "gradient-scaled",
        change_model(drop_gradient=KEEP),
        lambda faulty, clean: [Ratio(faulty.drop_gradient / clean.drop_gradient)],
    ),
    "tables_decayed": Fault(
        "weight decay of the tables of relative positions too",
        "weight-decay",
        change_optimizer(are_tables_decayed=True),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, 0.0)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "decay_in_gradient": Fault(
        "Adam for AdamW: weight decay is added to the gradient",
        "update-rule",
        change_optimizer(kind="adam"),
        row="32",
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "gelu_approximate": Fault(
        "gelu by tanh, the default of MindSpore's cell, not the exact one",
        "gelu-variant",
        change_model(is_gelu_approximate=True),
        equivalents=("activation-kind", "argument"),
    ),
    "scale_of_channels": Fault(
        "scores are divided by the root of all channels, not of those of a head",
        "scale",
        change_model(is_scale_of_channels=True),
        lambda *_: [Ratio(HEADS[0] ** -0.5)],
        equivalents=("constant-factor", "argument"),
    ),
    "indexing": Fault(
        "positions in a window from a grid with the columns first, the default of MindSpore's "
        "meshgrid: its table of relative positions is read by column and row",
        "relative-bias",
        change_model(indexing="xy"),
        equivalents=(
            "axes-swapped",
            "weight-transposed",
            "position-offset",
            "input-order",
            "input-source",
            "argument",
        ),
    ),
    "mask_shared": Fault(
        "drop path draws one mask for both branches of a block, which are dropped together",
        "input-source",
        change_model(is_mask_shared=True),
        equivalents=("dropout", "residual-scale", "batch", "mask-kind"),
    ),
    "mask_by_row": Fault(
        "regions of the mask are counted in the outer loop only: columns from the other edge are "
        "seen",
        "mask-kind",
        change_model(are_columns_masked=False),
        lambda *_: [Anywhere("(?i)mask|fill|region|column|row")],
        equivalents=("mask-missing", "mask-shifted", "cross-mask", "input-source"),
    ),
    "tables_unlisted": Fault(
        "groups of matrices, kernels and vectors, by dimensions: tables of relative positions, "
        "which have three, are in none and stay as they are",
        "update-missing",
        change_optimizer(are_tables_updated=False),
        optimizer=True,
        equivalents=("learning-rate", "update-rule", "gradient-stopped"),
    ),
    "labels_rolled": Fault(
        "labels are mixed with those of the batch rolled by one, as torchvision does, images with "
        "those of the reversed batch, as timm does",
        "loss-target",
        change_model(are_labels_rolled=True),
        equivalents=(
            "batch",
            "row-shift",
            "label-shift",
            "input-order",
            "input-source",
            "missing-step",
            "label-smoothing",
            "scan-direction",
        ),
    ),
    "shift_gradient": Fault(
        "a fused kernel shifts and divides tokens into windows; its backward pass shifts the "
        "gradient in the same direction, not back",
        "row-shift",
        change_model(is_shift_gradient_repeated=True),
        equivalents=("argument", "axes-swapped", "input-order", "input-source", "missing-step"),
    ),
    "joined_by_head": Fault(
        "the converter cuts the joined q, k and v head by head, as Megatron stores them, not in "
        "thirds",
        "split-order",
        _read_by_head,
        equivalents=("weight-rows", "heads-permuted", "weight-swapped", "axes-swapped"),
    ),
    "windows_unmoved": Fault(
        "tokens are reshaped to windows and back without the transpose between the two axes: a "
        "window is a piece of a row of the image",
        "axes-swapped",
        change_model(are_windows_moved=False),
        equivalents=("missing-step", "split-order", "input-order", "input-source", "row-shift"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("relation_reversed", "mindspore"),
    ("bias_scaled", "pytorch"),
    ("mask_of_images", "pytorch"),
    ("shift_repeated", "pytorch"),
    ("merged_by_row", "mindspore"),
    ("kept_unscaled", "mindspore"),
    ("pooled_first", "pytorch"),
    ("others_smoothed", "mindspore"),
    ("tables_stopped", "pytorch"),
    ("drop_gradient", "mindspore"),
    ("tables_decayed", "pytorch"),
    ("decay_in_gradient", "mindspore"),
    ("gelu_approximate", "mindspore"),
    ("scale_of_channels", "pytorch"),
    ("indexing", "mindspore"),
    ("mask_shared", "pytorch"),
    ("mask_by_row", "pytorch"),
    ("tables_unlisted", "mindspore"),
    ("labels_rolled", "mindspore"),
    ("shift_gradient", "pytorch"),
    ("joined_by_head", "mindspore"),
    ("windows_unmoved", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
