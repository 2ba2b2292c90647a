"""Faults of the learned world model for planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.muzero.architecture import MEMORY, Model


def _put_candidate_second(model: Model) -> Model:
    """Return an LSTM with the rows input, candidate, forget, output."""
    weights = dict(model.weights)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        values = weights[f"prefix.lstm.{name}"]
        parts = values.reshape(4, MEMORY, *values.shape[1:])[[0, 2, 1, 3]]
        weights[f"prefix.lstm.{name}"] = np.ascontiguousarray(parts.reshape(values.shape))
    return replace(model, weights=weights)


def _exchange_kernel_axes(model: Model) -> Model:
    """Return convolutions whose kernels have rows and columns exchanged."""
    weights = dict(model.weights)
    for name, kernel in weights.items():
        if kernel.ndim == 4:
            weights[name] = np.ascontiguousarray(kernel.swapaxes(2, 3))
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "range_of_channel": Fault(
        "minimum and maximum of a state are those of each channel, as in a known "
        "reimplementation, not of all its numbers",
        "reduction-axis",
        change_model(is_range_of_channel=True),
        equivalents=("norm-kind", "norm-groups", "pooling", "argument", "input-source"),
    ),
    "ends_counted": Fault(
        "the mask of policies, values and consistency is that of steps: the state behind the last "
        "step of an episode counts, too",
        "mask-shifted",
        change_model(are_ends_counted=True),
        lambda *_: [Anywhere(r"(?i)mask|hid|fill|shift|\b1\b|one|row|column|step")],
        equivalents=("mask-kind", "mask-missing", "row-shift", "input-source"),
    ),
    "observed_attached": Fault(
        "projections of observed states are not detached: the loss of consistency trains them",
        "gradient-stopped",
        change_model(are_observed_attached=True),
        equivalents=("missing-term",),
    ),
    "steps_unscaled": Fault(
        "losses of unrolled steps are summed, not divided by the number of steps",
        "loss-weight",
        change_model(step_weight=1.0),
        lambda faulty, clean: [Ratio(faulty.step_weight / clean.step_weight)],
        equivalents=(
            "constant-factor",
            "scale",
            "loss-reduction",
            "pooling",
            "missing-step",
            "argument",
        ),
    ),
    "candidate_second": Fault(
        "the LSTM comes from a Haiku checkpoint, whose rows are input, candidate, forget, output, "
        "and is loaded as it is",
        "gate-order",
        _put_candidate_second,
        lambda *_: [Anywhere("(?i)gate|order|row|block|exchang|swap|permut|split")],
        equivalents=("weight-rows", "split-order", "heads-permuted", "channel-order"),
    ),
    "visits_counted": Fault(
        "the buffer gives numbers of visits, not their shares, as the targets of policies",
        "batch",
        change_model(are_visits_counted=True),
        equivalents=("loss-target", "constant-factor", "scale", "missing-step", "input-source"),
    ),
    "action_first": Fault(
        "planes of the action come before the channels of the state, not behind them",
        "input-order",
        change_model(is_action_first=True),
        equivalents=(
            "channel-order",
            "split-order",
            "heads-permuted",
            "row-shift",
            "input-source",
            "argument",
        ),
    ),
    "head_gradient_scaled": Fault(
        "a hook on the state scales all of its gradient, that of the heads, too, not only that "
        "of the dynamics",
        "gradient-scaled",
        change_model(is_head_gradient_scaled=True),
        lambda *_: [
            Anywhere(
                r"(?i)half|halv|twice|doubl|"
                r"(?<![\w.])(?:0\.5|0\.50\d*|0\.49\d*|2|2\.0\d*|1\.99\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=("constant-factor", "scale", "layer-order", "missing-step"),
    ),
    "range_constant": Fault(
        "the own backward pass of the state's normalization takes minimum and maximum for "
        "constants",
        "gradient-stopped",
        change_model(is_range_constant=True),
        equivalents=("missing-term", "missing-step", "gradient-scaled"),
    ),
    "kernels_turned": Fault(
        "kernels come from a checkpoint with (height, width, in, out), all axes of which are "
        "reversed: rows and columns are exchanged",
        "kernel-axes",
        _exchange_kernel_axes,
        equivalents=("axes-swapped", "weight-transposed"),
    ),
    "prefixes_plain": Fault(
        "value prefixes are spread over atoms as they are, without the square root that values "
        "have",
        "missing-step",
        change_model(are_prefixes_plain=True),
        equivalents=("loss-target", "activation-kind", "input-source"),
    ),
    "memory_kept": Fault(
        "the LSTM keeps its state where a new horizon begins, though value prefixes begin again",
        "hidden-state-reset",
        change_model(is_memory_kept=True),
        equivalents=("zeroed", "mask-missing", "missing-step", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("range_of_channel", "mindspore"),
    ("ends_counted", "mindspore"),
    ("observed_attached", "mindspore"),
    ("steps_unscaled", "mindspore"),
    ("candidate_second", "mindspore"),
    ("visits_counted", "mindspore"),
    ("action_first", "pytorch"),
    ("head_gradient_scaled", "pytorch"),
    ("range_constant", "pytorch"),
    ("kernels_turned", "pytorch"),
    ("prefixes_plain", "pytorch"),
    ("memory_kept", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
