"""Faults of the vector-quantised autoencoder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from architecture import round_bfloat16
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.vqvae.architecture import EMBED

FAULTS: Mapping[str, Fault] = {
    "transposed_shifted": Fault(
        "the transposed convolution has a padding and an output padding of one pixel, where 'same' "
        "padding cuts the last row and column, not the first ones",
        "padding-mode",
        change_model(is_transposed_shifted=True),
        equivalents=("causal-shift", "row-shift", "argument"),
    ),
    "product_single": Fault(
        "products of encodings and codes count once, not twice, in the squared distances",
        "constant-factor",
        change_model(product_factor=1.0),
        lambda faulty, clean: [Ratio(faulty.product_factor / clean.product_factor)],
        equivalents=("scale", "argument"),
    ),
    "channels_first": Fault(
        "encodings are cut into rows of the codebook with the channels still before the cells",
        "axes-swapped",
        change_model(is_channel_read_first=True),
        equivalents=("missing-step",),
    ),
    "residual_activated": Fault(
        "residual blocks add their activated input: the first activation works in place",
        "residual-order",
        change_model(is_residual_activated=True),
        equivalents=("input-source", "skip-source", "layer-order"),
    ),
    "scaled_by_cells": Fault(
        "scores divided by the root of the number of cells: the wrong axis of the queries is read",
        "scale",
        change_model(is_scaled_by_cells=True),
        lambda faulty, clean: [Ratio(faulty.score_scale / clean.score_scale)],
        equivalents=("constant-factor",),
    ),
    "distance_sums": Fault(
        "codebook and commitment loss are means of distances over cells, not over all elements",
        "loss-reduction",
        change_model(quantizer_reduction="cells"),
        lambda *_: [Ratio(EMBED)],
        equivalents=("constant-factor", "scale", "pooling", "loss-weight", "reduction-axis"),
    ),
    "codebook_rounded": Fault(
        "the codebook was saved in bfloat16",
        "low-precision",
        change_weight("codebook.weight", round_bfloat16),
        lambda *_: [Words("bfloat16")],
    ),
    "raw_target": Fault(
        "the decoder's images, in [-1, 1], are compared with pixels in [0, 1]",
        "loss-target",
        change_model(is_target_raw=True),
        equivalents=("input-source", "batch"),
    ),
    "beta_exchanged": Fault(
        "beta weighs the codebook loss, not the commitment, as in the first VQGAN",
        "gradient-scaled",
        change_model(is_beta_exchanged=True),
        lambda *_: [Anywhere(r"\b0\.25\b|\b4\b|exchang|swap|other")],
        equivalents=("loss-weight", "input-order", "input-source", "constant-factor", "scale"),
    ),
    "straight_missing": Fault(
        "the decoder reads the codes themselves: no gradient passes straight to the encoder",
        "gradient-stopped",
        change_model(is_straight_through=False),
        equivalents=("straight-through", "missing-step", "input-source"),
    ),
    "codebook_rate": Fault(
        "all weights are in one group, so that the codebook learns as slowly as the rest",
        "learning-rate",
        change_optimizer(codebook_rate=1.0),
        lambda faulty, clean: [
            Ratio(faulty.optimizer.codebook_rate / clean.optimizer.codebook_rate)
        ],
        optimizer=True,
    ),
    "bias_correction": Fault(
        "MindSpore's AdamWeightDecay, which does not correct the bias of the moments",
        "bias-correction",
        change_optimizer(bias_correction=False),
        row="32",
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "group_count": Fault(
        "group norms have two groups, not four",
        "norm-groups",
        change_model(groups=2),
        lambda faulty, clean: [Values(faulty.groups, clean.groups)],
        equivalents=("argument",),
    ),
    "bilinear": Fault(
        "the decoder's upsampling is bilinear, not of nearest pixels",
        "resize-mode",
        change_model(resize_mode="bilinear"),
        lambda *_: [Words("bilinear|linear", "nearest")],
        equivalents=("argument", "align-corners"),
    ),
    "variance_missing": Fault(
        "the squared error of the pixels is not divided by their variance",
        "loss-weight",
        change_model(pixel_variance=1.0),
        lambda faulty, clean: [Ratio(clean.pixel_variance / faulty.pixel_variance)],
        equivalents=("constant-factor", "scale", "missing-step", "loss-reduction"),
    ),
    "kernel_flipped": Fault(
        "the kernel of the transposed convolution is turned, as a convolution would need it",
        "kernel-flipped",
        change_weight("decoder.up.weight", lambda kernel: np.flip(kernel, axis=(2, 3))),
    ),
    "commitment_attached": Fault(
        "the commitment loss has no stop_gradient: the codebook gets its gradient, too",
        "gradient-stopped",
        change_model(is_commitment_detached=False),
        equivalents=("gradient-scaled",),
    ),
    "weights_untransposed": Fault(
        "values, channels before cells, are multiplied by weights that are not transposed",
        "axes-swapped",
        change_model(are_weights_transposed=False),
        equivalents=("missing-step", "input-source"),
    ),
    "passed_twice": Fault(
        "the straight-through function's own backward pass returns its gradient for both inputs: "
        "the codebook gets that of the decoder, too",
        "gradient-stopped",
        change_model(is_gradient_passed_twice=True),
        equivalents=("straight-through", "missing-term", "missing-step"),
    ),
    "softmax_queries": Fault(
        "softmax over the queries, the last but one axis, as for scores with keys before queries",
        "softmax-axis",
        change_model(softmax_axis=1),
        equivalents=("reduction-axis", "axes-swapped", "argument"),
    ),
    "pixels_absolute": Fault(
        "the pixels' error is absolute, as VQGAN's, not squared",
        "loss-kind",
        change_model(is_pixel_error_absolute=True),
        lambda *_: [Anywhere(r"(?i)abs|squar|mse|\bl[12]\b|l1_?loss|pow")],
        equivalents=("activation-kind", "missing-step"),
    ),
    "upsampling_gradient": Fault(
        "the upsampling's own backward pass takes the mean of the gradients of a pixel's four "
        "copies, not their sum",
        "gradient-scaled",
        change_model(is_upsampling_gradient_mean=True),
        lambda *_: [Ratio(1 / 4)],
        equivalents=("constant-factor", "scale", "pooling"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("transposed_shifted", "pytorch"),
    ("product_single", "mindspore"),
    ("channels_first", "mindspore"),
    ("residual_activated", "pytorch"),
    ("scaled_by_cells", "mindspore"),
    ("distance_sums", "pytorch"),
    ("codebook_rounded", "mindspore"),
    ("raw_target", "pytorch"),
    ("beta_exchanged", "mindspore"),
    ("straight_missing", "pytorch"),
    ("codebook_rate", "pytorch"),
    ("bias_correction", "mindspore"),
    ("group_count", "mindspore"),
    ("bilinear", "pytorch"),
    ("variance_missing", "pytorch"),
    ("kernel_flipped", "mindspore"),
    ("commitment_attached", "mindspore"),
    ("weights_untransposed", "pytorch"),
    ("passed_twice", "mindspore"),
    ("softmax_queries", "pytorch"),
    ("pixels_absolute", "mindspore"),
    ("upsampling_gradient", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
