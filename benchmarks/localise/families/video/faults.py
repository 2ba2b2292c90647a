"""Faults of the video classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.video.architecture import COLUMNS, HEAD_DIM, HIDDEN, ROWS, TIMES, Model


def _copy_space_to_time(model: Model) -> Model:
    """Give the second block's attention over time the output layer of that over space."""
    copied = {
        f"blocks.1.time.o.{kind}": model.weights[f"blocks.1.space.o.{kind}"]
        for kind in ("weight", "bias")
    }
    return replace(model, weights={**model.weights, **copied})


def _flatten_by_columns(model: Model) -> Model:
    """Give patches, which are in the order of rows, the positions of a grid read by columns."""
    token, patches = np.split(model.weights["space.weight"], [1], axis=1)
    grid = patches.reshape(1, ROWS, COLUMNS, HIDDEN).swapaxes(1, 2)
    table = np.concatenate([token, grid.reshape(patches.shape)], axis=1)
    return replace(model, weights={**model.weights, "space.weight": table})


FAULTS: Mapping[str, Fault] = {
    "time_first": Fault(
        "tokens are flattened frame by frame, but blocks and head take them patch by patch",
        "axes-swapped",
        change_model(is_time_first=True),
        equivalents=("layer-order", "missing-step", "row-shift", "split-order"),
    ),
    "skip_early": Fault(
        "attention over space adds to the block's input: what time had added is lost on the skip",
        "skip-source",
        change_model(is_skip_early=True),
        equivalents=(
            "input-source",
            "skip-missing",
            "missing-term",
            "residual-order",
            "layer-order",
        ),
    ),
    "pooling_axis": Fault(
        "softmax over the last axis, the default, of scores (batch, time, 1): all weights are 1",
        "softmax-axis",
        change_model(pooling_axis=-1),
        equivalents=("pooling", "reduction-axis", "missing-step", "argument"),
    ),
    "first_copy": Fault(
        "the class token gets what its copy in the first frame gets, not the mean of all copies",
        "pooling",
        change_model(is_first_copy_taken=True),
        equivalents=("missing-step", "input-source", "reduction-axis", "loss-reduction"),
    ),
    "scale_dim": Fault(
        "scores are divided by the root of the width, not of a head's size",
        "scale",
        change_model(scale_dim=HIDDEN),
        lambda faulty, clean: [Ratio((clean.scale_dim / faulty.scale_dim) ** 0.5)],
        equivalents=("constant-factor", "argument"),
    ),
    "order_diagonal": Fault(
        "the triangle of pairs has the diagonal, the default: each time also precedes itself",
        "mask-shifted",
        change_model(has_diagonal=True),
        equivalents=("mask-kind", "mask-missing", "loss-reduction", "argument"),
    ),
    "smoothed_again": Fault(
        "the loss smooths targets that the mix has smoothed already",
        "label-smoothing",
        change_model(is_smoothed_again=True),
        equivalents=("loss-target", "argument"),
    ),
    "copy_gradient": Fault(
        "the backward pass of the class token's copies takes the mean over time, not the sum",
        "gradient-scaled",
        change_model(is_copy_gradient_mean=True),
        lambda *_: [Ratio(1 / TIMES)],
        equivalents=("constant-factor", "scale", "pooling", "reduction-axis"),
    ),
    "pooling_detached": Fault(
        "the weights of times are detached, as for a plot, before features are multiplied by them",
        "gradient-stopped",
        change_model(is_pooling_detached=True),
        equivalents=("missing-term",),
    ),
    "order_detached": Fault(
        "the head of the order reads detached features, as a probe does: none learns from it",
        "gradient-stopped",
        change_model(is_order_detached=True),
        equivalents=("missing-term",),
    ),
    "space_copied": Fault(
        "attention over time has the output layer of that over space: a key matched by its end",
        "weight-swapped",
        _copy_space_to_time,
        equivalents=("input-source",),
    ),
    "time_interleaved": Fault(
        "each position in time is repeated for all patches in a row; they are to repeat in turn",
        "axes-swapped",
        change_model(is_time_interleaved=True),
        equivalents=("position-offset", "row-shift", "input-source", "missing-step"),
    ),
    "shares_exchanged": Fault(
        "targets are mixed with the share of the other clip for the own one, clips as they should",
        "loss-target",
        change_model(are_shares_exchanged=True),
        equivalents=(
            "input-order",
            "input-source",
            "missing-step",
            "constant-offset",
            "label-smoothing",
            "batch",
        ),
    ),
    "query_gradient": Fault(
        "the backward pass of a fused attention over time lacks the scale of the scores in the "
        "gradient of its queries",
        "gradient-scaled",
        change_model(query_gradient=HEAD_DIM**0.5),
        lambda faulty, clean: [Ratio(faulty.query_gradient / clean.query_gradient)],
        equivalents=("scale", "constant-factor"),
    ),
    "grid_by_columns": Fault(
        "positions in space, resized for another image, are written back column by column",
        "weight-rows",
        _flatten_by_columns,
        equivalents=("axes-swapped", "weight-transposed", "row-shift", "input-order"),
    ),
    "token_position": Fault(
        "patches have the positions from the first row on, which is the class token's: one early",
        "position-offset",
        change_model(is_token_position_read=True),
        lambda *_: [Anywhere(r"(?i)shift|offset|rows?\b|slic|position|\b1\b")],
        equivalents=("row-shift", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("time_first", "mindspore"),
    ("skip_early", "mindspore"),
    ("pooling_axis", "mindspore"),
    ("order_detached", "mindspore"),
    ("copy_gradient", "mindspore"),
    ("space_copied", "mindspore"),
    ("first_copy", "pytorch"),
    ("scale_dim", "pytorch"),
    ("smoothed_again", "pytorch"),
    ("pooling_detached", "pytorch"),
    ("order_diagonal", "pytorch"),
    ("time_interleaved", "pytorch"),
    ("query_gradient", "mindspore"),
    ("shares_exchanged", "pytorch"),
    ("grid_by_columns", "mindspore"),
    ("token_position", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "separate": ("", "separate"),
    "written": ("written", ""),
    "both": ("written", "separate"),
}
