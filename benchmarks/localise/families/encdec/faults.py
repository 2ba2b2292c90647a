"""Faults and cases of the encoder-decoder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.encdec.architecture import Model
from families.fault import Change, Fault, change_model, change_weight

SENTINELS = 10  #: tokens at the end of the vocabulary that stand for spans; the first one is last


def _reverse_sentinels(table: np.ndarray) -> np.ndarray:
    """Put the rows of the sentinels into ascending order."""
    table[-SENTINELS:] = table[-SENTINELS:][::-1].copy()
    return table


def _swap_weights(first: str, second: str) -> Change:
    def apply(model: Model) -> Model:
        weights = model.weights
        swapped = {**weights, first: weights[second], second: weights[first]}
        return change_model(weights=swapped)(model)

    return apply


FAULTS: Mapping[str, Fault] = {
    "max_distance": Fault(
        "buckets of the encoder's position bias reach to a distance of 40, not 20",
        "relative-bias",
        change_model(max_distance=40),
    ),
    "bucket_direction": Fault(
        "half of the decoder's buckets are for later tokens",
        "relative-bias",
        change_model(is_decoder_bidirectional=True),
    ),
    "bias_in_first_layer": Fault(
        "the decoder's second layer has no position bias",
        "relative-bias",
        change_model(unbiased_layer=1),
    ),
    "cross_mask": Fault(
        "the decoder attends to the source's padding",
        "cross-mask",
        change_model(is_cross_masked=False),
        lambda *_: [Anywhere("mask")],
    ),
    "encoder_mask": Fault(
        "the encoder attends to padding",
        "mask-missing",
        change_model(is_encoder_masked=False),
        lambda *_: [Anywhere("mask")],
    ),
    "cross_scale": Fault(
        "scores of a cross attention divided by the root of the head's size",
        "scale",
        change_model(cross_scale=8**-0.5),
        lambda faulty, clean: [Ratio(faulty.cross_scale / clean.cross_scale)],
    ),
    "norm_eps": Fault(
        "a norm has eps 1e-3 for 1e-6",
        "epsilon",
        change_model(norm_eps=1e-3),
        lambda faulty, clean: [Values(faulty.norm_eps, clean.norm_eps)],
    ),
    "norm_kind": Fault(
        "layer norm for RMS norm before a cross attention",
        "norm-kind",
        change_model(cross_norm="layer"),
        lambda *_: [Words("layer norm", "RMS norm")],
    ),
    "gelu_erf": Fault(
        "exact gelu for the tanh form in one layer",
        "gelu-variant",
        change_model(activation="gelu_erf"),
        lambda *_: [Words(r"gelu \(erf\)", r"gelu \(tanh\)")],
    ),
    "cross_swapped": Fault(
        "the weights of k and v of a cross attention exchanged",
        "weight-swapped",
        _swap_weights("decoder.0.cross.k.weight", "decoder.0.cross.v.weight"),
    ),
    "head_scale": Fault(
        "the tied head's input is not scaled",
        "constant-factor",
        change_model(head_scale=1.0),
        lambda faulty, clean: [Ratio(faulty.head_scale / clean.head_scale)],
    ),
    "encoder_detached": Fault(
        "no gradient from the last cross attention to the encoder",
        "gradient-stopped",
        change_model(is_encoder_detached=True),
    ),
    "label_smoothing": Fault(
        "labels are not smoothed",
        "label-smoothing",
        change_model(label_smoothing=0.0),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
    ),
    "ignore_index": Fault(
        "padding counts in the loss",
        "ignore-index",
        change_model(is_padding_ignored=False),
    ),
    "mask_shifted": Fault(
        "a token of the decoder sees the one after it",
        "mask-shifted",
        change_model(n_later=1),
        lambda *_: [Words("hides from diagonal 2", "hides from diagonal 1|a causal mask$")],
    ),
    "gate_up_swapped": Fault(
        "gate and up of a feed-forward exchanged on load",
        "gate-up-swapped",
        _swap_weights("encoder.0.mlp.gate.weight", "encoder.0.mlp.up.weight"),
        lambda *_: [Anywhere("gate"), Anywhere("up")],
    ),
    "padding_divided": Fault(
        "the sum of the losses is divided by all labels, with padding",
        "loss-reduction",
        change_model(is_padding_divided=True),
        row="8",
    ),
    "norm_missing": Fault(
        "no norm behind the encoder",
        "norm-missing",
        change_model(has_encoder_norm=False),
        lambda *_: [Anywhere("norm")],
    ),
    "output_transposed": Fault(
        "the square weight of an attention's output transposed on load",
        "weight-transposed",
        change_weight("decoder.0.attention.o.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed")],
    ),
    "softmax_half": Fault(
        "softmax of a cross attention in float16",
        "low-precision",
        change_model(is_cross_softmax_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "bias_transposed": Fault(
        "queries and keys exchanged in the encoder's position bias",
        "relative-bias",
        change_model(is_encoder_bias_transposed=True),
        equivalents=("axes-swapped", "weight-transposed"),
    ),
    "cross_parallel": Fault(
        "the last cross attention reads the hidden state from before the self attention",
        "input-source",
        change_model(is_cross_parallel=True),
        equivalents=("layer-order", "residual-order"),
    ),
    "residual_order": Fault(
        "the residual of the decoder's last feed-forward is taken behind its norm",
        "residual-order",
        change_model(is_residual_normed=True),
        equivalents=("input-source", "skip-source"),
    ),
    "source_gradient": Fault(
        "the gradient of the encoder's output is the mean over the decoder's layers, not the sum",
        "gradient-scaled",
        change_model(source_gradient=0.5),
        lambda faulty, clean: [Ratio(faulty.source_gradient / clean.source_gradient)],
    ),
    "z_loss": Fault(
        "the loss has the z-loss of T5's first training, which the other program lacks",
        "z-loss",
        change_model(z_loss=1e-4),
        equivalents=("missing-term", "missing-step"),
    ),
    "labels_shifted": Fault(
        "labels moved by one in the loss, too, though the decoder's tokens are those before them",
        "label-shift",
        change_model(are_labels_shifted=True),
        equivalents=("loss-target", "row-shift", "input-source", "missing-step"),
    ),
    "encoder_causal": Fault(
        "the encoder has a causal mask: its configuration is a copy of the decoder's",
        "mask-kind",
        change_model(is_encoder_causal=True),
        lambda *_: [Anywhere("(?i)mask|causal|fill|later|diagonal")],
        equivalents=("mask-missing", "mask-shifted", "missing-term", "missing-step"),
    ),
    "shared_bias_stopped": Fault(
        "the position bias gets a gradient from the encoder's first layer only",
        "gradient-stopped",
        change_model(is_shared_bias_stopped=True),
    ),
    "mask_inverted": Fault(
        "the mask of tokens goes to an operator that hides where it is true: only padding is seen",
        "cross-mask",
        change_model(is_cross_mask_inverted=True),
        lambda *_: [Anywhere("(?i)mask|padding|fill|hid|bias|invert")],
        equivalents=(
            "mask-kind",
            "mask-fill",
            "mask-missing",
            "missing-step",
            "missing-term",
            "input-source",
        ),
    ),
    "sentinels_reversed": Fault(
        "rows of the sentinels loaded in ascending order; the tokenizer counts from the last one",
        "weight-rows",
        change_weight("embedding.weight", _reverse_sentinels),
        lambda *_: [Anywhere("row|order")],
        equivalents=("row-shift", "weight-swapped", "scan-direction"),
    ),
    "source_normed": Fault(
        "the norm of the last cross attention is applied to the encoder's output, too, which has "
        "its own",
        "missing-step",
        change_model(is_source_normed=True),
        lambda *_: [Anywhere("(?i)norm")],
        equivalents=("norm-missing", "input-source", "layer-order", "norm-kind"),
    ),
    "padding_row": Fault(
        "the shared table has a padding_idx: the row of padding, which is the decoder's first "
        "token, too, gets a gradient from the head only",
        "gradient-stopped",
        change_model(is_padding_row_fixed=True),
        lambda *_: [Anywhere(r"(?i)row|padding|token|\b0\b")],
        equivalents=("missing-term", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("max_distance", "mindspore"),
    ("bucket_direction", "pytorch"),
    ("bias_in_first_layer", "pytorch"),
    ("cross_mask", "mindspore"),
    ("encoder_mask", "pytorch"),
    ("cross_scale", "mindspore"),
    ("norm_eps", "pytorch"),
    ("norm_kind", "mindspore"),
    ("gelu_erf", "pytorch"),
    ("cross_swapped", "mindspore"),
    ("head_scale", "pytorch"),
    ("encoder_detached", "mindspore"),
    ("label_smoothing", "pytorch"),
    ("ignore_index", "mindspore"),
    ("mask_shifted", "mindspore"),
    ("gate_up_swapped", "pytorch"),
    ("padding_divided", "pytorch"),
    ("norm_missing", "pytorch"),
    ("output_transposed", "mindspore"),
    ("softmax_half", "mindspore"),
    ("bias_transposed", "mindspore"),
    ("cross_parallel", "pytorch"),
    ("residual_order", "mindspore"),
    ("source_gradient", "pytorch"),
    ("z_loss", "mindspore"),
    ("labels_shifted", "pytorch"),
    ("encoder_causal", "mindspore"),
    ("shared_bias_stopped", "pytorch"),
    ("mask_inverted", "mindspore"),
    ("sentinels_reversed", "pytorch"),
    ("source_normed", "mindspore"),
    ("padding_row", "pytorch"),
)

#: Other module names in PyTorch; norm and loss written out in MindSpore, fused attention and a loss
#: from log-probabilities in PyTorch.
VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "decomposition": ("decomposition", "decomposition"),
    "fused": ("", "fused"),
    "fused_decomposition": ("decomposition", "fused"),
    "one_decomposition": ("", "decomposition"),
    "rms_norm": ("", "rms_norm"),
}
