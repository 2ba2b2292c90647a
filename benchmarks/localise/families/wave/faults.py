"""Faults of the autoencoder of waveforms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_weight
from families.wave.architecture import LATENT, STEPS

FAULTS: Mapping[str, Fault] = {
    "activated_first": Fault(
        "snake before the group norm, not behind it",
        "layer-order",
        change_model(is_activated_first=True),
        equivalents=("input-source",),
    ),
    "deviation": Fault(
        "the exponential of the logarithm of the variance taken as deviation, without its half",
        "constant-factor",
        change_model(deviation_factor=1.0),
        lambda *_: [Anywhere(r"\b(0\.5|2)\b")],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "latent_gradient": Fault(
        "the gradient of what is drawn from the posterior is a tenth",
        "gradient-scaled",
        change_model(latent_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.latent_gradient / clean.latent_gradient)],
    ),
    "dilation": Fault(
        "the last block's convolution is not dilated",
        "dilation",
        change_model(dilation=1),
        lambda faulty, clean: [Values(faulty.dilation, clean.dilation)],
    ),
    "magnitude_of_all": Fault(
        "weight norm divides by the norm of the whole weight, not of each output's",
        "reduction-axis",
        change_model(is_magnitude_of_all=True),
        lambda *_: [Anywhere("axis|axes|whole|all|row|channel")],
    ),
    "gates_first": Fault(
        "the halves of a gated convolution exchanged",
        "gate-up-swapped",
        change_model(are_gates_first=True),
        equivalents=("gate-order", "split-order", "input-order"),
    ),
    "half_upsampling": Fault(
        "the transposed convolution in bfloat16",
        "low-precision",
        change_model(is_upsampling_half=True),
        lambda *_: [Words("bfloat16")],
    ),
    "snake": Fault(
        "the square of snake's sine is not divided by alpha",
        "missing-step",
        change_model(is_snake_divided=False),
        equivalents=("activation-kind", "missing-term"),
    ),
    "tiled": Fault(
        "the sequence repeated as a whole, not sample by sample",
        "axes-swapped",
        change_model(is_tiled=True),
        equivalents=("resize-mode",),
    ),
    "log_scale": Fault(
        "the loss lacks the logarithm of the scale",
        "missing-term",
        change_model(has_log_scale=False),
        equivalents=("missing-step", "skip-missing"),
    ),
    "kl_elements": Fault(
        "the mean of the divergence over all elements, not its sum over a sequence",
        "loss-reduction",
        change_model(kl_reduction="elements"),
        lambda *_: [Ratio(1 / (LATENT * STEPS))],
        equivalents=("constant-factor", "scale", "pooling"),
    ),
    "mean_stopped": Fault(
        "no gradient from the divergence to the mean of the posterior",
        "gradient-stopped",
        change_model(is_mean_stopped=True),
    ),
    "padded_around": Fault(
        "the last dilated convolution is padded on both sides, not causally",
        "causal-shift",
        change_model(is_padded_around=True),
        equivalents=("padding-mode", "row-shift", "argument"),
    ),
    "one_group": Fault(
        "a group norm with one group, as EnCodec's, not four",
        "norm-groups",
        change_model(groups=1),
        lambda *_: [Anywhere(r"group|\b[14]\b|ax[ei]s")],
        equivalents=("norm-kind", "reduction-axis", "argument"),
    ),
    "residual_scale": Fault(
        "the residual sum in front of the last block times the root of 0.5, as in a vocoder",
        "constant-factor",
        change_model(residual_scale=0.5**0.5),
        lambda faulty, clean: [Ratio(faulty.residual_scale / clean.residual_scale)],
        equivalents=("residual-scale", "scale", "missing-step"),
    ),
    "kernel_reversed": Fault(
        "the transposed convolution's kernel loaded from the last tap to the first one",
        "kernel-flipped",
        change_weight("upsampling.weight", lambda kernel: np.flip(kernel, axis=2)),
        equivalents=("scan-direction",),
    ),
    "sample_stopped": Fault(
        "what is drawn from the posterior has no gradient: sample, not rsample",
        "gradient-stopped",
        change_model(is_sample_stopped=True),
        equivalents=("missing-term",),
    ),
    "first_sample": Fault(
        "pre-emphasis takes the first sample as its own predecessor, as Kaldi's does",
        "padding-mode",
        change_model(is_first_emphasized=True),
        equivalents=(
            "missing-step",
            "missing-term",
            "constant-factor",
            "scale",
            "input-source",
        ),
    ),
    "padding_gradient": Fault(
        "the backward pass of a causal convolution's own kernel does not skip the padding when it "
        "crops the gradient: all steps get that of an earlier one",
        "row-shift",
        change_model(is_padding_gradient_early=True),
        lambda *_: [Anywhere("(?i)shift|offset|crop|slice|row|position|index|pad|step")],
        equivalents=(
            "causal-shift",
            "padding-mode",
            "position-offset",
            "input-source",
            "argument",
        ),
    ),
    "target_emphasized": Fault(
        "pre-emphasis has moved to the loader, so that the loss compares with its result, too, "
        "not with the waveform",
        "loss-target",
        change_model(is_target_emphasized=True),
        equivalents=("input-source", "missing-step", "missing-term"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("activated_first", "mindspore"),
    ("deviation", "pytorch"),
    ("latent_gradient", "mindspore"),
    ("dilation", "pytorch"),
    ("magnitude_of_all", "mindspore"),
    ("gates_first", "mindspore"),
    ("half_upsampling", "pytorch"),
    ("snake", "mindspore"),
    ("tiled", "pytorch"),
    ("log_scale", "pytorch"),
    ("kl_elements", "mindspore"),
    ("mean_stopped", "mindspore"),
    ("padded_around", "mindspore"),
    ("one_group", "pytorch"),
    ("residual_scale", "pytorch"),
    ("kernel_reversed", "mindspore"),
    ("sample_stopped", "mindspore"),
    ("first_sample", "pytorch"),
    ("padding_gradient", "mindspore"),
    ("target_emphasized", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "distributions": ("", "distributions"),
    "written": ("", "written"),
    "unfolded": ("unfolded", ""),
}
