"""Faults and cases of the speech encoder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Shift, Values, Words

from families.conformer.architecture import HIDDEN, KERNEL, LAYERS, VOCAB, Model
from families.fault import Fault, change_model, change_weight

LAST = f"layers.{LAYERS - 1}"


def _swap_biases(model: Model) -> Model:
    """Give the contents and the positions of an attention each other's bias."""
    content, position = (f"{LAST}.attention.{name}_bias" for name in ("content", "position"))
    weights = model.weights
    swapped = {**weights, content: weights[position], position: weights[content]}
    return change_model(weights=swapped)(model)


FAULTS: Mapping[str, Fault] = {
    "half_step": Fault(
        "the first feed-forward counts once, not half",
        "residual-scale",
        change_model(half_step=1.0),
        lambda faulty, clean: [Ratio(faulty.half_step / clean.half_step)],
    ),
    "gates_first": Fault(
        "the gated linear unit takes the first half as its gate",
        "gate-up-swapped",
        change_model(are_gates_first=True),
    ),
    "causal_convolution": Fault(
        "the depthwise convolution of a streaming model, which sees no later step",
        "causal-shift",
        change_model(is_conv_causal=True),
        lambda *_: [Shift(KERNEL // 2)],
    ),
    "running_statistics": Fault(
        "a batch norm left in evaluation mode",
        "running-statistics",
        change_model(are_statistics_running=True),
        lambda *_: [Words("running statistics")],
    ),
    "position_offset": Fault(
        "relative positions off by one",
        "position-offset",
        change_model(position_offset=1),
        lambda faulty, clean: [Shift(faulty.position_offset)],
    ),
    "content_bias": Fault(
        "the bias of an attention's contents was not loaded",
        "zeroed",
        change_weight(f"{LAST}.attention.content_bias", np.zeros_like),
        lambda *_: [Anywhere("filled with 0|all zeros")],
    ),
    "mask_subsampling": Fault(
        "a position counts as padding if its last frame does, not its first one",
        "mask-kind",
        change_model(first_frame=3),
        lambda *_: [Anywhere("mask")],
    ),
    "relu": Fault(
        "relu for swish in one feed-forward",
        "activation-kind",
        change_model(activation="relu"),
        lambda *_: [Words("relu", "silu|swish")],
    ),
    "mels_first": Fault(
        "channels and mels flattened in the order of a channels-last framework",
        "axes-swapped",
        change_model(are_mels_first=True),
    ),
    "frontend_gradient": Fault(
        "the gradient of the convolutions in front is a tenth, as in fine-tuning",
        "gradient-scaled",
        change_model(frontend_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.frontend_gradient / clean.frontend_gradient)],
    ),
    "loss_reduction": Fault(
        "the mean of the losses, not divided by their numbers of labels",
        "loss-reduction",
        change_model(loss_reduction="sequences"),
    ),
    "score_scale": Fault(
        "scores divided by the root of the hidden size, not of the head's size",
        "scale",
        change_model(score_dim=HIDDEN),
        lambda faulty, clean: [Ratio((faulty.score_dim / clean.score_dim) ** -0.5)],
        equivalents=("constant-factor",),
    ),
    "embedding_scale": Fault(
        "projected frames are not scaled",
        "constant-factor",
        change_model(embedding_scale=1.0),
        lambda faulty, clean: [Ratio(faulty.embedding_scale / clean.embedding_scale)],
        equivalents=("scale",),
    ),
    "position_stopped": Fault(
        "no gradient through the scores of relative positions",
        "gradient-stopped",
        change_model(is_position_stopped=True),
    ),
    "convolution_mask": Fault(
        "padding is not masked before the depthwise convolution",
        "mask-missing",
        change_model(is_convolution_masked=False),
        equivalents=("missing-step",),
    ),
    "lengths_floored": Fault(
        "lengths behind the strided convolutions rounded down, not up",
        "rounding-mode",
        change_model(are_lengths_floored=True),
        equivalents=("argument", "constant-offset", "missing-step", "missing-term"),
    ),
    "shift_missing": Fault(
        "scores of relative positions are cut to the keys without being shifted",
        "missing-step",
        change_model(are_scores_shifted=False),
        equivalents=("relative-bias", "position-offset", "row-shift", "input-source"),
    ),
    "biases_swapped": Fault(
        "the biases of an attention's contents and positions exchanged on load",
        "weight-swapped",
        _swap_biases,
        lambda *_: [Anywhere("bias|parameter|weight")],
        equivalents=("input-order", "input-source"),
    ),
    "sines_first": Fault(
        "relative positions have all sines before all cosines, they do not alternate",
        "time-embedding-order",
        change_model(are_sines_first=True),
        equivalents=("rope-layout", "axes-swapped", "input-order"),
    ),
    "layer_normed": Fault(
        "layer norm in a convolution module, as in streaming models, not batch norm",
        "norm-kind",
        change_model(conv_norm="layer"),
        lambda *_: [Anywhere("(?i)norm|mean|variance")],
        equivalents=("reduction-axis", "norm-groups"),
    ),
    "blank_last": Fault(
        "the blank of the loss is the last label, as in another toolkit, not the first one",
        "argument",
        change_model(blank=VOCAB - 1),
        lambda faulty, clean: [Values(faulty.blank, clean.blank)],
        equivalents=("label-shift", "constant-offset", "input-source"),
    ),
    "flip_missing": Fault(
        "the positions of the past are not flipped before those of the future are joined to them",
        "missing-step",
        change_model(is_past_flipped=False),
        equivalents=(
            "weight-rows",
            "position-offset",
            "relative-bias",
            "input-order",
            "input-source",
            "scan-direction",
        ),
    ),
    "subsampling_same": Fault(
        "the strided convolutions have a framework's default padding, 'same': one row behind, none "
        "before",
        "padding-mode",
        change_model(subsampling_padding="same"),
        lambda *_: [Anywhere("(?i)pad|same")],
        equivalents=("causal-shift", "row-shift", "position-offset", "argument"),
    ),
    "convolution_first": Fault(
        "a block's convolution module comes before its attention, an option of torchaudio",
        "layer-order",
        change_model(is_convolution_first=True),
        equivalents=("input-source", "residual-order", "input-order", "skip-source"),
    ),
    "step_gradient": Fault(
        "a fused sum with the residual halves the second feed-forward in its forward pass only",
        "gradient-scaled",
        change_model(step_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.step_gradient / clean.step_gradient)],
        equivalents=("constant-factor", "scale", "residual-scale"),
    ),
    "silent_padding": Fault(
        "waves are padded before their mels are computed: padding is a silent frame's level, not 0",
        "padding-mode",
        change_model(padding_level=-5.0),
        equivalents=("batch", "mask-missing", "mask-fill", "missing-step", "input-source"),
    ),
    "chunk_mask": Fault(
        "attention has the mask of a streaming model, WeNet's: no position sees one behind its own "
        "chunk of four",
        "mask-kind",
        change_model(chunk=4),
        lambda *_: [Anywhere("(?i)mask|hid|fill|causal|chunk|later")],
        equivalents=("mask-missing", "cross-mask", "missing-step"),
    ),
    "logits_unnormalized": Fault(
        "the loss gets logits: that of warp-ctc, which the program had before, has a softmax of "
        "its own",
        "missing-step",
        change_model(are_logits_normalized=False),
        equivalents=("input-source", "norm-missing", "loss-kind"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("half_step", "pytorch"),
    ("gates_first", "mindspore"),
    ("causal_convolution", "mindspore"),
    ("running_statistics", "pytorch"),
    ("position_offset", "pytorch"),
    ("content_bias", "pytorch"),
    ("mask_subsampling", "mindspore"),
    ("relu", "pytorch"),
    ("mels_first", "pytorch"),
    ("frontend_gradient", "mindspore"),
    ("loss_reduction", "mindspore"),
    ("score_scale", "mindspore"),
    ("embedding_scale", "pytorch"),
    ("position_stopped", "mindspore"),
    ("convolution_mask", "mindspore"),
    ("lengths_floored", "pytorch"),
    ("shift_missing", "pytorch"),
    ("biases_swapped", "mindspore"),
    ("sines_first", "mindspore"),
    ("layer_normed", "pytorch"),
    ("blank_last", "mindspore"),
    ("flip_missing", "pytorch"),
    ("subsampling_same", "mindspore"),
    ("convolution_first", "pytorch"),
    ("step_gradient", "mindspore"),
    ("silent_padding", "pytorch"),
    ("chunk_mask", "mindspore"),
    ("logits_unnormalized", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "linear": ("linear", ""),
    "indexed": ("", "indexed"),
}
