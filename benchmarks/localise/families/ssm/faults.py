"""Faults of the state-space model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from claims import Anywhere, Claim, Ratio, Shift, Values, Words

from families.fault import Fault, change_model, change_weight


def _say(injected: str, clean: str = "") -> Callable[[Any, Any], Sequence[Claim]]:
    return lambda faulty, clean_model: [Words(injected, clean)]


FAULTS: Mapping[str, Fault] = {
    "norm_eps": Fault(
        "the norm has eps 1e-2 for 1e-5",
        "epsilon",
        change_model(eps=1e-2),
        lambda faulty, clean: [Values(faulty.eps, clean.eps)],
    ),
    "conv_shift": Fault(
        "the convolution sees the next step",
        "causal-shift",
        change_model(conv_shift=1),
        lambda faulty, clean: [Shift(-faulty.conv_shift)],
    ),
    "kernel_flipped": Fault(
        "the convolution's kernel is flipped",
        "kernel-flipped",
        change_model(is_kernel_flipped=True),
        lambda faulty, clean: [Anywhere("flipped")],
    ),
    "gelu_for_silu": Fault(
        "gelu for silu after the convolution",
        "activation-kind",
        change_model(activation="gelu"),
        _say("gelu", "silu"),
    ),
    "dt_bias_missing": Fault(
        "the bias of the step sizes is left out",
        "bias-missing",
        change_model(has_dt_bias=False),
        lambda faulty, clean: [Anywhere("bias")],
    ),
    "zero_order_hold": Fault(
        "B discretized by a zero-order hold, not by Euler's rule",
        "discretization",
        change_model(discretization="hold"),
    ),
    "decay_linear": Fault(
        "A is read without its exponential",
        "decay-exponent",
        change_model(is_decay_exponential=False),
    ),
    "b_c_swapped": Fault(
        "B and C exchanged when their projection is split",
        "split-order",
        change_model(are_b_c_swapped=True),
    ),
    "skip_missing": Fault(
        "D times x is not added",
        "skip-missing",
        change_model(has_skip=False),
        lambda faulty, clean: [Anywhere(r"\bD\b")],
    ),
    "reversed": Fault(
        "the scan begins at the end",
        "scan-direction",
        change_model(is_reversed=True),
        _say("reverse"),
    ),
    "state_stopped": Fault(
        "no gradient flows from one step to the one before it",
        "gradient-stopped",
        change_model(is_state_stopped=True),
    ),
    "gate_linear": Fault(
        "the gate without its activation",
        "activation-kind",
        change_model(is_gate_activated=False),
        _say("no activation|identity", "silu"),
    ),
    "state_reset": Fault(
        "the scan works chunk by chunk and forgets the state between them",
        "hidden-state-reset",
        change_model(chunk=4),
        _say("zero"),
        row="41",
    ),
    "residual_order": Fault(
        "residual taken after the norm",
        "residual-order",
        change_model(residual="after"),
    ),
    "norm_kind": Fault(
        "layer norm for RMS norm behind the last block",
        "norm-kind",
        change_model(norm_kind="layer"),
        _say("layer norm", "RMS norm"),
    ),
    "decay_half": Fault(
        "the decay of the steps in float16",
        "low-precision",
        change_model(is_decay_half=True),
        _say(r"\bfloat16"),
    ),
    "conv_bias": Fault(
        "the bias of a convolution was not loaded",
        "zeroed",
        change_weight("layers.1.conv.bias", np.zeros_like),
        lambda faulty, clean: [Anywhere("filled with 0|all zeros")],
    ),
    "gate_gradient": Fault(
        "the gradient of the gate is summed over two ranks that have the same",
        "gradient-scaled",
        change_model(gate_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.gate_gradient / clean.gate_gradient)],
    ),
    "softplus_missing": Fault(
        "step sizes without softplus",
        "missing-step",
        change_model(has_softplus=False),
        lambda *_: [Anywhere("softplus")],
        equivalents=("activation-kind",),
    ),
    "dt_bias_late": Fault(
        "the bias of the step sizes is added behind their softplus, not before it",
        "layer-order",
        change_model(is_dt_bias_late=True),
        equivalents=("input-source", "bias-missing"),
    ),
    "step_limit": Fault(
        "step sizes are clamped at 0.5, the limit of another model's configuration",
        "clamp",
        change_model(step_limit=0.5),
        lambda *_: [Anywhere(r"clamp|clip|limit|0\.5")],
        equivalents=("missing-step", "missing-term"),
    ),
    "skip_early": Fault(
        "D multiplies the branch before its convolution, not what the scan reads",
        "input-source",
        change_model(is_skip_early=True),
        lambda *_: [Anywhere(r"\bD\b|skip|read|input")],
        equivalents=("skip-source", "layer-order", "missing-step"),
    ),
    "final_norm_missing": Fault(
        "the head reads the last block without the norm between them",
        "norm-missing",
        change_model(has_final_norm=False),
        equivalents=("missing-step", "layer-order", "input-source"),
    ),
    "labels_twice": Fault(
        "labels are shifted in the loss again, after the batch has shifted them",
        "label-shift",
        change_model(are_labels_shifted_twice=True),
        equivalents=("input-source", "loss-target", "row-shift", "missing-step"),
    ),
    "decay_stopped": Fault(
        "no gradient flows through the decay of the steps, kept as a constant",
        "gradient-stopped",
        change_model(is_decay_stopped=True),
    ),
    "bilinear": Fault(
        "steps discretized by the bilinear rule, as in an earlier model",
        "discretization",
        change_model(discretization="bilinear"),
        equivalents=("decay-exponent", "missing-step", "missing-term"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("norm_eps", "pytorch"),
    ("conv_shift", "mindspore"),
    ("conv_shift", "pytorch"),
    ("kernel_flipped", "pytorch"),
    ("gelu_for_silu", "mindspore"),
    ("dt_bias_missing", "mindspore"),
    ("zero_order_hold", "pytorch"),
    ("decay_linear", "mindspore"),
    ("b_c_swapped", "pytorch"),
    ("skip_missing", "mindspore"),
    ("skip_missing", "pytorch"),
    ("reversed", "mindspore"),
    ("state_stopped", "pytorch"),
    ("gate_linear", "mindspore"),
    ("state_reset", "mindspore"),
    ("residual_order", "pytorch"),
    ("norm_kind", "pytorch"),
    ("decay_half", "pytorch"),
    ("conv_bias", "mindspore"),
    ("gate_gradient", "pytorch"),
    ("softplus_missing", "mindspore"),
    ("dt_bias_late", "pytorch"),
    ("step_limit", "mindspore"),
    ("skip_early", "pytorch"),
    ("final_norm_missing", "mindspore"),
    ("labels_twice", "pytorch"),
    ("decay_stopped", "mindspore"),
    ("bilinear", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "cumulative": ("cumulative", ""),
    "separate": ("", "separate"),
    "stepwise": ("", "stepwise"),
    "operators": ("operators", ""),
}
