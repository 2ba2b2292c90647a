"""Faults of the classifier of inverted bottlenecks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from claims import Anywhere, Claim, Ratio, Values, Words

from families.efficientnet.architecture import BLOCKS, DECAY, LAST_PIXELS, Model
from families.fault import Fault, change_model, change_optimizer


def _exchange_kernel_axes(model: Model) -> Model:
    """Exchange height and width of all depthwise kernels."""
    exchanged = {
        name: np.ascontiguousarray(values.swapaxes(2, 3))
        for name, values in model.weights.items()
        if name.endswith("depthwise.weight")
    }
    return change_model(weights={**model.weights, **exchanged})(model)


def _put_background_last(model: Model) -> Model:
    """Return a classifier whose first row, that of the background, is the last one."""
    moved = {
        name: np.roll(model.weights[name], -1, axis=0)
        for name in ("classifier.weight", "classifier.bias")
    }
    return change_model(weights={**model.weights, **moved})(model)


def _claim_first_branch(faulty: Model, clean: Model) -> Sequence[Claim]:
    """Claim the factor of the first branch that drop connect divides."""
    first = next(n for n, block in enumerate(BLOCKS) if n > 0 and block.has_skip)
    return [Ratio(clean.get_kept_share(first) / faulty.get_kept_share(first))]


FAULTS: Mapping[str, Fault] = {
    "padded_evenly": Fault(
        "depthwise convolutions of stride 2 padded by half the kernel on each side, not as 'SAME'",
        "padding-mode",
        change_model(is_padded_evenly=True),
        equivalents=("causal-shift", "row-shift", "argument"),
    ),
    "squeeze_relu": Fault(
        "relu between squeeze and excitation, the default of another library's cell, not swish",
        "activation-kind",
        change_model(squeeze_activation="relu"),
        lambda *_: [Anywhere("(?i)relu|silu|swish|sigmoid|maximum|clamp")],
        equivalents=("missing-step", "clamp"),
    ),
    "excited_early": Fault(
        "squeeze-and-excitation before the depthwise activation, as in MobileNetV3, not behind it",
        "layer-order",
        change_model(is_excited_early=True),
        equivalents=("input-source",),
    ),
    "norm_eps": Fault(
        "batch norms have PyTorch's default eps, 1e-5, not TensorFlow's 1e-3",
        "epsilon",
        change_model(norm_eps=1e-5),
        lambda faulty, clean: [Values(faulty.norm_eps, clean.norm_eps)],
        equivalents=("argument",),
    ),
    "projection_activated": Fault(
        "swish behind the projection of a block, too",
        "missing-step",
        change_model(is_projection_activated=True),
        lambda *_: [Anywhere("(?i)silu|swish|sigmoid|mul|activation")],
        equivalents=("activation-kind", "input-source"),
    ),
    "kernel_axes": Fault(
        "height and width of the depthwise kernels exchanged by a conversion of weights",
        "kernel-axes",
        _exchange_kernel_axes,
        equivalents=("axes-swapped", "weight-transposed"),
    ),
    "classifier_half": Fault(
        "the classifier in float16",
        "low-precision",
        change_model(is_classifier_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "background_missing": Fault(
        "labels count from the background, not from the class behind it",
        "label-shift",
        change_model(first_label=0),
        lambda *_: [Anywhere(r"shift|offset|added|adds|label|target|\b1\b")],
        equivalents=(
            "constant-offset",
            "missing-step",
            "missing-term",
            "loss-target",
            "position-offset",
            "row-shift",
            "argument",
            "input-source",
        ),
    ),
    "gate_stopped": Fault(
        "the backward pass of swish lacks the gradient through its sigmoid",
        "gradient-stopped",
        change_model(is_gate_stopped=True),
        equivalents=("missing-term",),
    ),
    "squeeze_gradient": Fault(
        "the backward pass of the last block's mean of pixels does not divide by their number",
        "gradient-scaled",
        change_model(squeeze_gradient=float(LAST_PIXELS)),
        lambda faulty, clean: [Ratio(faulty.squeeze_gradient / clean.squeeze_gradient)],
    ),
    "unclipped": Fault(
        "gradients are not clipped by their norm",
        "clip",
        change_optimizer(clip=0.0),
        optimizer=True,
        equivalents=("gradient-norm",),
    ),
    "decay_doubled": Fault(
        "weight decay from a penalty without TensorFlow's half is twice as large",
        "weight-decay",
        change_optimizer(weight_decay=2 * DECAY),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        optimizer=True,
    ),
    "branch_divided": Fault(
        "drop connect divides a branch by the share that it keeps, more so in later blocks, but "
        "drops none",
        "residual-scale",
        change_model(drop_rate=0.2),
        _claim_first_branch,
        equivalents=("constant-factor", "scale", "dropout", "missing-step"),
    ),
    "first_skip_missing": Fault(
        "the first block lacks its skip: its stride is a list, which no comparison finds equal to "
        "1",
        "skip-missing",
        change_model(is_first_skip_missing=True),
        equivalents=("missing-term", "missing-step", "input-source"),
    ),
    "background_last": Fault(
        "the classifier comes from a checkpoint whose background is behind the classes: each class "
        "has the next one's row",
        "row-shift",
        _put_background_last,
        lambda *_: [Anywhere("(?i)shift|row|order|channel")],
        equivalents=("weight-rows", "channel-order"),
    ),
    "stem_norm_frozen": Fault(
        "the stem's batch norm is left in evaluation, as fine-tuning freezes the first stage",
        "running-statistics",
        change_model(is_stem_norm_frozen=True),
        equivalents=("argument", "norm-kind", "norm-missing", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("padded_evenly", "pytorch"),
    ("squeeze_relu", "mindspore"),
    ("excited_early", "pytorch"),
    ("norm_eps", "pytorch"),
    ("projection_activated", "mindspore"),
    ("kernel_axes", "mindspore"),
    ("classifier_half", "mindspore"),
    ("background_missing", "pytorch"),
    ("gate_stopped", "pytorch"),
    ("squeeze_gradient", "mindspore"),
    ("unclipped", "pytorch"),
    ("decay_doubled", "mindspore"),
    ("branch_divided", "mindspore"),
    ("first_skip_missing", "pytorch"),
    ("background_last", "mindspore"),
    ("stem_norm_frozen", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "linear": ("", "linear"),
    "padded": ("padded", ""),
}
