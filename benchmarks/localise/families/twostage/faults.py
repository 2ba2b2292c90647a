"""Faults of the two-stage detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from claims import Anywhere, Claim, Ratio, Values

from families.fault import Fault, change_model, change_weight
from families.twostage.architecture import BACKGROUND, BINS, PYRAMID, Model


def _put_background_first(model: Model) -> Model:
    """Give the classes' scores rows of a checkpoint whose first class is background."""
    for name in ("weight", "bias"):
        change = change_weight(f"boxes.classes.{name}", lambda values: np.roll(values, 1, axis=0))
        model = change(model)
    return model


def _put_channels_last(weight: np.ndarray) -> np.ndarray:
    """Return the weight as it reads (row, column, channel)."""
    cells = weight.reshape(len(weight), PYRAMID, BINS**2)
    return cells.transpose(0, 2, 1).reshape(len(weight), -1)


def _claim_divisor(faulty: Model, clean: Model) -> Sequence[Claim]:
    matches = clean.batch()[3]
    return [Ratio(float((matches >= 0).sum() / (matches >= BACKGROUND).sum()))]


FAULTS: Mapping[str, Fault] = {
    "roi_unaligned": Fault(
        "RoI align takes a box's edges for places of cells' centers, without half a cell less, as "
        "its first version did",
        "position-offset",
        change_model(is_roi_aligned=False),
        lambda *_: [Anywhere(r"(?i)shift|offset|add|constant|align|half|term|0\.5")],
        equivalents=(
            "constant-offset",
            "align-corners",
            "missing-step",
            "missing-term",
            "argument",
        ),
    ),
    "deltas_first": Fault(
        "deltas of the second stage are cut into classes as if a delta had all classes in a row",
        "axes-swapped",
        change_model(are_deltas_first=True),
        equivalents=("channel-order", "split-order", "input-order", "heads-permuted"),
    ),
    "padding_counted": Fault(
        "the classes' loss is the mean of all proposals: those of padding count as background",
        "mask-missing",
        change_model(is_padding_counted=True),
        equivalents=("missing-step", "ignore-index", "loss-reduction"),
    ),
    "stage_stopped": Fault(
        "the first stage of the backbone is frozen with its norms: it passes no gradient on",
        "gradient-stopped",
        change_model(is_stage_stopped=True),
    ),
    "background_first": Fault(
        "scores come from a checkpoint whose first class is background, where it is the last one",
        "weight-rows",
        _put_background_first,
        lambda *_: [Anywhere("(?i)order|row|shift|roll|permut")],
        equivalents=("row-shift", "channel-order", "label-shift", "heads-permuted"),
    ),
    "sizes_inclusive": Fault(
        "targets of deltas have widths and heights of a pixel more, as boxes with their last pixel",
        "constant-offset",
        change_model(are_sizes_inclusive=True),
        lambda *_: [Anywhere(r"(?i)(?<![\w.])-?(?:1|1\.0+\d*|0\.99\d*)(?![\w.])|add|term|offset")],
        equivalents=("missing-term", "missing-step", "loss-target", "argument"),
    ),
    "norm_eps": Fault(
        "frozen norms do not add eps to the variance, as the first ones of torchvision",
        "epsilon",
        change_model(norm_eps=0.0),
        lambda faulty, clean: [Values(faulty.norm_eps, clean.norm_eps)],
        equivalents=("argument", "constant-offset", "missing-term", "missing-step"),
    ),
    "default_beta": Fault(
        "smooth L1 of the anchors with the function's default of 1, not 1 / 9",
        "loss-threshold",
        change_model(anchor_beta=1.0),
        lambda faulty, clean: [Values(faulty.anchor_beta, clean.anchor_beta)],
        equivalents=("argument",),
    ),
    "sampled_divisor": Fault(
        "the anchors' smooth L1 is divided by all sampled anchors, as torchvision does, not by "
        "those with an object",
        "loss-reduction",
        change_model(anchor_divisor="sampled"),
        _claim_divisor,
        equivalents=("constant-factor", "scale", "loss-weight", "pooling"),
    ),
    "gradient_overwritten": Fault(
        "the backward pass of RoI align stores the gradient of a cell for each sample, without "
        "adding: one of the samples that read it remains",
        "gradient-stopped",
        change_model(is_gradient_overwritten=True),
        equivalents=("missing-term", "gradient-scaled", "missing-step"),
    ),
    "channels_last": Fault(
        "the first linear layer comes from a checkpoint that flattens (row, column, channel)",
        "axes-swapped",
        change_weight("boxes.first.weight", _put_channels_last),
        lambda *_: [Anywhere("(?i)order|column|ax[ei]s|permut|channel|input")],
        equivalents=(
            "kernel-axes",
            "channel-order",
            "weight-rows",
            "heads-permuted",
            "input-order",
        ),
    ),
    "proposals_unscaled": Fault(
        "proposals come from a file as those of the images before they were resized by 1.25",
        "constant-factor",
        change_model(proposal_scale=0.8),
        lambda *_: [Anywhere(r"(?i)0\.8\b|0\.80+\d*|1\.25\b|batch|input|data|proposal")],
        equivalents=("scale", "batch", "missing-step"),
    ),
    "ratios_inverted": Fault(
        "ratios of anchors are taken for width / height, as other libraries have them, not for "
        "height / width",
        "input-order",
        change_model(are_ratios_inverted=True),
        equivalents=(
            "axes-swapped",
            "channel-order",
            "split-order",
            "heads-permuted",
            "weight-rows",
            "row-shift",
            "loss-target",
            "input-source",
        ),
    ),
    "colors_reversed": Fault(
        "the first kernel comes from a checkpoint that reads blue, green, red, as Detectron's do; "
        "images are red, green, blue",
        "channel-order",
        change_weight("stem.weight", lambda kernel: kernel[:, ::-1]),
        lambda *_: [
            Anywhere("(?i)order|channel|column|exchang|swap|permut|revers|flip|input|ax[ei]s")
        ],
        equivalents=("input-order", "weight-rows", "axes-swapped", "kernel-axes", "kernel-flipped"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("roi_unaligned", "mindspore"),
    ("deltas_first", "mindspore"),
    ("padding_counted", "mindspore"),
    ("stage_stopped", "mindspore"),
    ("background_first", "mindspore"),
    ("sizes_inclusive", "mindspore"),
    ("norm_eps", "pytorch"),
    ("default_beta", "pytorch"),
    ("sampled_divisor", "pytorch"),
    ("gradient_overwritten", "pytorch"),
    ("channels_last", "pytorch"),
    ("proposals_unscaled", "pytorch"),
    ("ratios_inverted", "mindspore"),
    ("colors_reversed", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "detectron": ("", "detectron"),
    "written": ("written", ""),
    "both": ("written", "detectron"),
}
