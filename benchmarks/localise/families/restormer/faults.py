"""Faults of the image restoration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_weight
from families.restormer.architecture import (
    BATCH,
    CHARBONNIER_EPS,
    EDGE_WEIGHT,
    LOWER_WEIGHT,
    Model,
)


def _reset_temperatures(model: Model) -> Model:
    """Leave all temperatures at one."""
    weights = {
        name: np.ones_like(values) if name.endswith("temperature") else values
        for name, values in model.weights.items()
    }
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "channels_normed": Fault(
        "queries and keys are divided by their norms along a head's channels, pixel by pixel, as "
        "attention of pixels has it",
        "reduction-axis",
        change_model(is_norm_of_channels=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|channel|pixel|column|row|norm")],
        equivalents=("axes-swapped", "norm-kind", "argument"),
    ),
    "offsets_first": Fault(
        "the framework's space_to_depth, whose channels are offset by offset, for a pixel "
        "unshuffle, whose channels are those of a pixel one after the other",
        "channel-order",
        change_model(is_offset_first=True),
        equivalents=("axes-swapped", "split-order", "input-order", "missing-step"),
    ),
    "keys_unmasked": Fault(
        "pixels beyond the image are set to zero in queries only: they count in the norms of keys",
        "mask-missing",
        change_model(are_keys_masked=False),
        equivalents=("mask-kind", "cross-mask", "missing-step", "input-source"),
    ),
    "lower_detached": Fault(
        "the head of the lower level reads features without a gradient, as an auxiliary head that "
        "is not to disturb the others",
        "gradient-stopped",
        change_model(is_lower_detached=True),
        equivalents=("missing-term",),
    ),
    "temperatures_initial": Fault(
        "temperatures are not loaded: the converter drops names without 'weight' or 'bias'",
        "zeroed",
        _reset_temperatures,
        lambda *_: [Anywhere(r"(?i)\bones\b|(?<![\w.])1(?:\.0*)?(?![\w.])|temperature")],
        equivalents=("missing-step", "scale", "weight-scaled"),
    ),
    "lower_weight": Fault(
        "a parenthesis too late: the lower level's loss is multiplied by the edges' weight, too",
        "loss-weight",
        change_model(lower_weight=EDGE_WEIGHT * LOWER_WEIGHT),
        lambda faulty, clean: [Ratio(faulty.lower_weight / clean.lower_weight)],
        equivalents=("constant-factor", "scale", "argument"),
    ),
    "lower_centered": Fault(
        "norms without a bias are layer norms without a bias, which subtract the mean",
        "norm-kind",
        change_model(is_lower_centered=True),
        lambda *_: [Anywhere("(?i)norm|mean|cent(?:er|r)")],
        equivalents=("missing-step", "missing-term", "argument"),
    ),
    "columns_exchanged": Fault(
        "the 1x1 convolution comes from a checkpoint whose skip connection is the first half of "
        "what is joined",
        "channel-order",
        change_weight("reduce.weight", lambda kernel: np.roll(kernel, kernel.shape[1] // 2, 1)),
        lambda *_: [Anywhere("(?i)order|column|channel|exchang|swap|permut|row|concat|half|part")],
        equivalents=("input-order", "weight-rows", "split-order", "weight-swapped", "row-shift"),
    ),
    "pixels_pooled": Fault(
        "losses are divided by the weighted number of all images' pixels: larger images count more",
        "loss-reduction",
        change_model(are_pixels_pooled=True),
        equivalents=("loss-weight", "pooling", "missing-step", "missing-term", "input-source"),
    ),
    "temperature_gradient": Fault(
        "a fused attention returns the mean over the batch as the temperatures' gradient, not the "
        "sum",
        "gradient-scaled",
        change_model(temperature_gradient=1 / BATCH),
        lambda faulty, clean: [Ratio(faulty.temperature_gradient / clean.temperature_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "mean_constant": Fault(
        "the backward pass of a norm written by hand lacks the mean of the gradients",
        "gradient-stopped",
        change_model(is_mean_constant=True),
        equivalents=("missing-term", "missing-step", "straight-through", "norm-kind"),
    ),
    "target_flipped": Fault(
        "augmentation is drawn for image and target apart: one target is turned left to right",
        "loss-target",
        change_model(is_target_flipped=True),
        equivalents=("batch", "input-order", "input-source", "axes-swapped"),
    ),
    "eps_unsquared": Fault(
        "the Charbonnier loss adds eps to the squared error, as BasicSR's with its smaller eps, "
        "not the square of eps",
        "epsilon",
        change_model(is_eps_squared=False),
        lambda *_: [Values(CHARBONNIER_EPS, CHARBONNIER_EPS**2)],
        equivalents=("constant-offset", "argument"),
    ),
    "heads_interleaved": Fault(
        "heads are the fast axis of the channels: a rearrangement of (channel head) for (head "
        "channel), there and back",
        "heads-permuted",
        change_model(are_heads_interleaved=True),
        equivalents=("axes-swapped", "split-order", "channel-order", "input-order"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("channels_normed", "mindspore"),
    ("offsets_first", "mindspore"),
    ("keys_unmasked", "mindspore"),
    ("lower_detached", "mindspore"),
    ("temperatures_initial", "mindspore"),
    ("lower_weight", "mindspore"),
    ("lower_centered", "pytorch"),
    ("columns_exchanged", "pytorch"),
    ("pixels_pooled", "pytorch"),
    ("temperature_gradient", "pytorch"),
    ("mean_constant", "pytorch"),
    ("target_flipped", "pytorch"),
    ("eps_unsquared", "mindspore"),
    ("heads_interleaved", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "split": ("", "split"),
    "written": ("written", ""),
    "both": ("written", "split"),
}
