"""Faults of the soft actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model, change_weight
from families.sac.architecture import CHANNELS, FEATURES, FLAT, GRID, Model


def _copy_critics(model: Model) -> Model:
    """Give the target critics the weights of the critics."""
    weights = {name: model.weights[name.replace("targets.", "critics.")] for name in model.weights}
    return replace(model, weights=weights)


def _order_by_pixel(weight: np.ndarray) -> np.ndarray:
    """Return a weight whose columns are channels of one pixel after the other."""
    kernels = weight.reshape(FEATURES, CHANNELS[1], GRID, GRID)
    return kernels.transpose(0, 2, 3, 1).reshape(FEATURES, FLAT)


FAULTS: Mapping[str, Fault] = {
    "log_std_clipped": Fault(
        "the logarithm of the deviation is clipped to its bounds, as in the first codes of the "
        "method, not squashed into them",
        "activation-kind",
        change_model(is_log_std_clipped=True),
        lambda *_: [Anywhere("(?i)tanh|clip|clamp|squash|identity|linear|no activation|without")],
        equivalents=("clamp", "missing-step", "input-source"),
    ),
    "late_rewards": Fault(
        "rewards behind the end of a row, of the next episode in the buffer, are added to its "
        "return",
        "mask-missing",
        change_model(are_late_rewards_added=True),
        equivalents=("missing-step", "input-source", "mask-kind"),
    ),
    "critics_trained": Fault(
        "the critics' weights are not fixed in the actor's loss: its gradient reaches them",
        "gradient-stopped",
        change_model(are_critics_fixed=False),
        equivalents=("missing-term",),
    ),
    "targets_copied": Fault(
        "a checkpoint is loaded without its target critics, which begin as copies of the critics",
        "weight-swapped",
        _copy_critics,
        equivalents=("input-source",),
    ),
    "weights_normalized": Fault(
        "the critics' loss is divided by the sum of the rows' weights, not by their number",
        "loss-reduction",
        change_model(are_weights_normalized=True),
        equivalents=(
            "loss-weight",
            "constant-factor",
            "scale",
            "pooling",
            "missing-step",
            "input-source",
        ),
    ),
    "squash_gradient": Fault(
        "the own backward pass of the squashed action takes 1 - tanh^2 from the scaled and shifted "
        "action and leaves out the scale",
        "gradient-scaled",
        change_model(is_squash_gradient_scaled=True),
        equivalents=("scale", "input-source", "missing-step", "missing-term"),
    ),
    "scale_uncounted": Fault(
        "the logarithm of an action's likelihood has no term of the scale of actions",
        "missing-term",
        change_model(is_scale_counted=False),
        equivalents=("constant-offset", "missing-step"),
    ),
    "discount_full": Fault(
        "what follows the rewards is discounted by the same number of steps in all rows, those of "
        "fewer steps too",
        "decay-exponent",
        change_model(is_discount_full=True),
        equivalents=("argument", "input-source", "missing-step"),
    ),
    "sample_detached": Fault(
        "the action is drawn by sample, not by rsample: no gradient goes through it",
        "gradient-stopped",
        change_model(is_sample_detached=True),
        equivalents=("missing-term",),
    ),
    "temperature_logarithm": Fault(
        "the loss of the temperature is that of its logarithm, as in another library",
        "missing-step",
        change_model(is_temperature_logarithmic=True),
        equivalents=("input-source", "activation-kind", "loss-kind", "argument"),
    ),
    "outputs_interleaved": Fault(
        "the actor's last layer gives mean and deviation of one action in turn, not all means "
        "first",
        "split-order",
        change_model(are_outputs_interleaved=True),
        lambda *_: [
            Anywhere("(?i)order|interleav|pair|ax[ei]s|transpos|permut|exchang|swap|split|column")
        ],
        equivalents=("axes-swapped", "channel-order", "input-order", "input-source"),
    ),
    "frames_reversed": Fault(
        "the environment's wrapper stacks the newest frame first",
        "channel-order",
        change_model(are_frames_reversed=True),
        lambda *_: [
            Anywhere("(?i)order|channel|frame|exchang|swap|permut|revers|flip|batch|input|data")
        ],
        equivalents=("batch", "input-order", "axes-swapped", "row-shift", "input-source"),
    ),
    "pixels_first": Fault(
        "the linear layer behind the convolutions comes from a JAX checkpoint, whose features are "
        "flattened pixel by pixel, not channel by channel",
        "channel-order",
        change_weight("encoder.out.weight", _order_by_pixel),
        lambda *_: [Anywhere("(?i)order|column|channel|pixel|permut|row|ax[ei]s|transpos|split")],
        equivalents=("axes-swapped", "weight-rows", "input-order", "split-order", "heads-permuted"),
    ),
    "cuts_done": Fault(
        "the buffer stores that an episode is over, not that it has ended: those cut by the time "
        "limit have no value behind them",
        "batch",
        change_model(are_cuts_done=True),
        equivalents=("mask-kind", "mask-missing", "loss-target", "input-source", "missing-term"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("log_std_clipped", "mindspore"),
    ("late_rewards", "mindspore"),
    ("critics_trained", "mindspore"),
    ("targets_copied", "mindspore"),
    ("weights_normalized", "mindspore"),
    ("squash_gradient", "mindspore"),
    ("scale_uncounted", "pytorch"),
    ("discount_full", "pytorch"),
    ("sample_detached", "pytorch"),
    ("temperature_logarithm", "pytorch"),
    ("outputs_interleaved", "pytorch"),
    ("frames_reversed", "pytorch"),
    ("pixels_first", "mindspore"),
    ("cuts_done", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "ensemble": ("", "ensemble"),
    "written": ("written", ""),
    "both": ("written", "ensemble"),
}
