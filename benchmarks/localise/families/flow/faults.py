"""Faults of the normalizing flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer
from families.flow.architecture import LOGS_FACTOR, RATE, Model


def _invert_orders(model: Model) -> Model:
    """Transpose the permutations of all 1x1 convolutions."""
    inverted = {
        name: values.T.copy()
        for name, values in model.weights.items()
        if name.endswith("mix.order")
    }
    return replace(model, weights={**model.weights, **inverted})


def _reset_signs(model: Model) -> Model:
    """Leave the signs of all 1x1 convolutions as they are made: all positive."""
    positive = {
        name: np.ones_like(values)
        for name, values in model.weights.items()
        if name.endswith("mix.signs")
    }
    return replace(model, weights={**model.weights, **positive})


FAULTS: Mapping[str, Fault] = {
    "pixels_first": Fault(
        "squeezed channels are in the order of pixels, then colors, as space_to_depth has them",
        "channel-order",
        change_model(are_pixels_first=True),
        equivalents=("axes-swapped", "split-order"),
    ),
    "offset_missing": Fault(
        "scales of the couplings without the 2 that is added before the sigmoid",
        "constant-offset",
        change_model(scale_offset=0.0),
        equivalents=("missing-step", "missing-term", "argument", "input-source"),
    ),
    "shift_last": Fault(
        "couplings add the shift behind the multiplication, as RealNVP does, not before it",
        "layer-order",
        change_model(is_shift_last=True),
        equivalents=("input-source", "missing-step"),
    ),
    "net_halved": Fault(
        "shift and scale are the halves of the network's channels, not the even and the odd ones",
        "split-order",
        change_model(is_net_halved=True),
        equivalents=("channel-order", "axes-swapped", "input-source"),
    ),
    "norm_counted_once": Fault(
        "the log-determinant of a norm is that of one pixel, not times their number",
        "constant-factor",
        change_model(is_norm_counted_once=True),
        equivalents=("scale", "missing-step", "loss-weight"),
    ),
    "net_half": Fault(
        "the last convolution of the couplings' networks in float16",
        "low-precision",
        change_model(is_net_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "width_missing": Fault(
        "the log-likelihood of the bins' width is left out: that of values, not of pixels",
        "missing-term",
        change_model(has_width_term=False),
        equivalents=("constant-offset", "missing-step"),
    ),
    "log_variance": Fault(
        "logarithms of deviations are read as those of variances in the log-likelihood",
        "constant-factor",
        change_model(logs_in_variance=1.0),
        lambda faulty, clean: [Ratio(faulty.logs_in_variance / clean.logs_in_variance)],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "order_inverted": Fault(
        "permutations of the 1x1 convolutions from a decomposition that gives them transposed",
        "weight-transposed",
        _invert_orders,
        lambda *_: [Anywhere("(?i)transposed|order|rows|perm")],
        equivalents=("axes-swapped", "channel-order", "weight-rows", "row-shift"),
    ),
    "determinant_stopped": Fault(
        "the log-determinant of couplings is computed from detached scales",
        "gradient-stopped",
        change_model(is_determinant_stopped=True),
        equivalents=("missing-term",),
    ),
    "warmup_missing": Fault(
        "the learning rate does not grow from its tenth: the first step has the whole one",
        "learning-rate",
        change_optimizer(learning_rate=RATE),
        lambda faulty, clean: [
            Ratio(faulty.optimizer.learning_rate / clean.optimizer.learning_rate)
        ],
        optimizer=True,
    ),
    "adam_eps": Fault(
        "AdamW has the default eps of MindSpore's AdamWeightDecay, 1e-6, not 1e-8",
        "optimizer-epsilon",
        change_optimizer(eps=1e-6),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        row="32",
        optimizer=True,
        equivalents=("argument",),
    ),
    "scale_exponential": Fault(
        "scales of the couplings are the exponential of the network, as the paper has them, not "
        "the sigmoid of it and 2, as its code has them",
        "activation-kind",
        change_model(is_scale_exponential=True),
        lambda *_: [Anywhere("(?i)exp|sigmoid")],
        equivalents=("constant-offset", "missing-step", "missing-term", "input-source"),
    ),
    "log_gradient": Fault(
        "the logarithms of a norm's scales have the gradient of the first code, whose variables "
        "are a third of them",
        "gradient-scaled",
        change_model(log_gradient=LOGS_FACTOR),
        lambda faulty, clean: [Ratio(faulty.log_gradient / clean.log_gradient)],
    ),
    "signs_initial": Fault(
        "signs of the 1x1 convolutions' diagonals are not loaded: the converter takes parameters, "
        "not buffers",
        "zeroed",
        _reset_signs,
        lambda *_: [Anywhere(r"(?i)sign|\bones?\b|fill|abs|(?<![\w.])-?1(?:\.0*)?(?![\w.])")],
        equivalents=("missing-step", "activation-kind"),
    ),
    "result_read_back": Fault(
        "couplings keep their result to save memory; their own backward pass takes it for what was "
        "multiplied, without dividing by the scale",
        "gradient-scaled",
        change_model(is_result_read_back=True),
        equivalents=("input-source", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("pixels_first", "mindspore"),
    ("offset_missing", "pytorch"),
    ("shift_last", "pytorch"),
    ("net_halved", "mindspore"),
    ("norm_counted_once", "pytorch"),
    ("net_half", "mindspore"),
    ("width_missing", "mindspore"),
    ("log_variance", "pytorch"),
    ("order_inverted", "mindspore"),
    ("determinant_stopped", "pytorch"),
    ("warmup_missing", "pytorch"),
    ("adam_eps", "mindspore"),
    ("scale_exponential", "pytorch"),
    ("log_gradient", "mindspore"),
    ("signs_initial", "mindspore"),
    ("result_read_back", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
