"""Faults of the neural transducer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.transducer.architecture import BLANK, ROWS, TIMES, Model


def _leave_blank_last(model: Model) -> Model:
    """Give the joiner rows of a checkpoint whose blank is the last class."""
    rolled = {
        name: np.roll(model.weights[name], -1, axis=0)
        for name in ("joiner.out.weight", "joiner.out.bias")
    }
    return replace(model, weights={**model.weights, **rolled})


FAULTS: Mapping[str, Fault] = {
    "masked_first": Fault(
        "SpecAugment is part of the loader and comes before the normalization: what it makes 0 is "
        "in the mean and the deviation, and is not 0 behind them",
        "layer-order",
        change_model(is_masked_first=True),
        equivalents=("input-source", "missing-step", "mask-fill"),
    ),
    "state_reset_first": Fault(
        "the GRU is that of the paper: the state is reset before its product with the candidate's "
        "matrix, not behind it",
        "cell-form",
        change_model(is_state_reset_first=True),
        equivalents=("layer-order", "input-source", "missing-step"),
    ),
    "offsets_negated": Fault(
        "offsets of the bias are query less key, not key less query",
        "relative-bias",
        change_model(are_offsets_negated=True),
        lambda *_: [
            Anywhere("(?i)bias|table|offset|position|relative|index|row|transpos|order|ax[ei]s")
        ],
        equivalents=("axes-swapped", "weight-rows", "scan-direction", "input-source"),
    ),
    "last_blank_missing": Fault(
        "the likelihood is the forward variable of the last step and row, without the blank that "
        "ends the recording",
        "missing-term",
        change_model(has_last_blank=False),
        equivalents=("missing-step", "input-source", "skip-missing"),
    ),
    "fastemit_default": Fault(
        "FastEmit's weight is not passed on to the loss, whose default is 0",
        "gradient-scaled",
        change_model(fastemit=0.0),
        lambda faulty, clean: [Ratio((1 + faulty.fastemit) / (1 + clean.fastemit))],
        equivalents=("constant-factor", "scale", "loss-weight", "missing-step", "missing-term"),
    ),
    "alignment_of_first_frame": Fault(
        "alignments of frames are taken at each step's first frame, not in the middle of the "
        "frames that its convolutions see",
        "batch",
        change_model(alignment_frame=0),
        equivalents=("loss-target", "label-shift", "row-shift", "input-source"),
    ),
    "transpose_forgotten": Fault(
        "channels, steps and mels are viewed as steps and features without moving steps to the "
        "front",
        "axes-swapped",
        change_model(is_transpose_forgotten=True),
        equivalents=("input-order", "channel-order", "split-order", "heads-permuted"),
    ),
    "left_unlimited": Fault(
        "attention sees all chunks to the left: the number of left chunks has its default, which "
        "is all of them",
        "mask-kind",
        change_model(left_chunks=TIMES),
        lambda *_: [Anywhere("(?i)mask|hid|fill|causal|chunk|window|see|left|key")],
        equivalents=("mask-missing", "mask-shifted", "cross-mask"),
    ),
    "mean_of_labels": Fault(
        "losses are divided by the number of all labels of the batch, not each one by its own",
        "loss-reduction",
        change_model(is_mean_of_labels=True),
        equivalents=("loss-weight", "reduction-axis", "pooling"),
    ),
    "joint_gradient": Fault(
        "a fused sum of steps and rows has its own backward pass, in which a step's gradient is "
        "the mean over rows, not the sum",
        "gradient-scaled",
        change_model(is_joint_gradient_mean=True),
        lambda *_: [Ratio(1 / ROWS)],
        equivalents=("constant-factor", "scale", "reduction-axis", "pooling"),
    ),
    "start_is_padding": Fault(
        "the embedding has the blank as its padding index, so that the start's row has no gradient",
        "gradient-stopped",
        change_model(padding_index=BLANK),
        equivalents=("missing-term", "ignore-index", "mask-missing"),
    ),
    "blank_last": Fault(
        "the joiner's classes are those of a toolkit with the blank behind all labels, and are "
        "loaded as if it were the first one",
        "weight-rows",
        _leave_blank_last,
        lambda *_: [Anywhere("(?i)row|order|shift|roll|permut|block|exchang")],
        equivalents=(
            "row-shift",
            "label-shift",
            "weight-swapped",
            "channel-order",
            "heads-permuted",
            "split-order",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("masked_first", "mindspore"),
    ("state_reset_first", "mindspore"),
    ("offsets_negated", "mindspore"),
    ("last_blank_missing", "mindspore"),
    ("fastemit_default", "mindspore"),
    ("alignment_of_first_frame", "mindspore"),
    ("transpose_forgotten", "pytorch"),
    ("left_unlimited", "pytorch"),
    ("mean_of_labels", "pytorch"),
    ("joint_gradient", "pytorch"),
    ("start_is_padding", "pytorch"),
    ("blank_last", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "parallel": ("", "parallel"),
    "written": ("written", ""),
    "both": ("written", "parallel"),
}
