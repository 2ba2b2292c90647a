"""Faults of the neural audio codec."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.codec.architecture import COUNTS
from families.fault import Fault, change_model, change_weight

FAULTS: Mapping[str, Fault] = {
    "trimmed_around": Fault(
        "transposed convolutions lose samples on both sides, as those that are not causal",
        "padding-mode",
        change_model(is_trimmed_around=True),
        equivalents=("causal-shift", "row-shift", "position-offset", "argument", "input-source"),
    ),
    "lstm_skip": Fault(
        "the LSTM has no skip around it: the framework's cell in place of the codec's own one",
        "skip-missing",
        change_model(has_lstm_skip=False),
        equivalents=("missing-term", "missing-step"),
    ),
    "code_lengths": Fault(
        "distances lack the squared lengths of the codes, as if codes were normalized",
        "missing-term",
        change_model(has_code_lengths=False),
        equivalents=("missing-step", "skip-missing", "constant-offset"),
    ),
    "losses_unmasked": Fault(
        "an example pays for the codebooks that it lacks: their losses have no mask",
        "mask-missing",
        change_model(are_losses_masked=False),
        equivalents=("missing-step", "loss-reduction", "mask-kind", "pooling", "input-source"),
    ),
    "root_gradient": Fault(
        "a fused magnitude divides its gradient by the root, not by twice the root",
        "gradient-scaled",
        change_model(is_root_halved=False),
        lambda *_: [Ratio(2.0)],
        equivalents=("constant-factor", "scale"),
    ),
    "spectra_stopped": Fault(
        "spectra are computed from waves without a gradient, as if their transform had none",
        "gradient-stopped",
        change_model(are_spectra_stopped=True),
        equivalents=("missing-term",),
    ),
    "residual_restarted": Fault(
        "a codebook's codes are subtracted from the encoding, not from what was left over before",
        "input-source",
        change_model(is_residual_restarted=True),
        equivalents=("skip-source", "missing-term", "missing-step", "residual-order"),
    ),
    "stride_ignored": Fault(
        "causal padding of strided convolutions does not take off the stride: steps come early",
        "padding-mode",
        change_model(is_stride_ignored=True),
        equivalents=("causal-shift", "row-shift", "position-offset", "argument"),
    ),
    "log_base": Fault(
        "magnitudes have the logarithm of base 10, as decibels do, not the natural one",
        "constant-factor",
        change_model(log_base=10.0),
        lambda faulty, clean: [Ratio(float(np.log(clean.log_base) / np.log(faulty.log_base)))],
        equivalents=("scale", "activation-kind", "missing-step", "loss-weight", "argument"),
    ),
    # https://github.com/facebookresearch/encodec/issues/25
    "residual_detached": Fault(
        "what a codebook leaves over has no gradient, as if codes were subtracted with their "
        "straight-through one: only the first commitment loss reaches the encoder",
        "gradient-stopped",
        change_model(is_residual_detached=True),
        equivalents=("straight-through", "missing-term"),
    ),
    "pointwise_transposed": Fault(
        "the single-step convolution of a residual unit loaded with inputs before outputs",
        "weight-transposed",
        change_weight("decoder.0.unit.conv2.direction", lambda kernel: kernel.swapaxes(0, 1)),
        lambda *_: [Anywhere("transposed")],
        equivalents=("axes-swapped", "kernel-axes"),
    ),
    "counts_sorted": Fault(
        "the loader sorts the counts of codebooks, but not the waves: examples exchange counts",
        "row-shift",
        change_model(counts=tuple(sorted(COUNTS))),
        equivalents=("batch", "input-order", "input-source", "mask-shifted", "mask-kind"),
    ),
    "direction_norm_stopped": Fault(
        "weight norm divides by norms of directions that have no gradient, as if they were buffers",
        "gradient-stopped",
        change_model(is_direction_norm_stopped=True),
        equivalents=("missing-term",),
    ),
    "alpha_logarithm": Fault(
        "snake reads its frequency as a logarithm, as BigVGAN's, and takes its exponential",
        "missing-step",
        change_model(is_alpha_logarithm=True),
        lambda *_: [Anywhere(r"(?i)\bexp|\blog")],
        equivalents=("activation-kind", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("trimmed_around", "mindspore"),
    ("lstm_skip", "mindspore"),
    ("code_lengths", "mindspore"),
    ("losses_unmasked", "mindspore"),
    ("root_gradient", "mindspore"),
    ("spectra_stopped", "mindspore"),
    ("residual_restarted", "pytorch"),
    ("stride_ignored", "pytorch"),
    ("log_base", "pytorch"),
    ("residual_detached", "pytorch"),
    ("pointwise_transposed", "pytorch"),
    ("counts_sorted", "pytorch"),
    ("direction_norm_stopped", "mindspore"),
    ("alpha_logarithm", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "products": ("products", ""),
    "both": ("products", "functional"),
}
