"""Faults of the speech recognizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer
from families.whisper.architecture import BATCH, HEAD_DIM, HIDDEN, LAYERS, VOCAB, Model


def _exchange_attentions(model: Model) -> Model:
    """Give the decoder's self attentions the weights of its cross attentions and the other way."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        own, cross = f"decoder.{n}.attention.", f"decoder.{n}.cross."
        for name in [name for name in model.weights if name.startswith(own)]:
            other = cross + name.removeprefix(own)
            weights[name], weights[other] = model.weights[other], model.weights[name]
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "batch_peak": Fault(
        "quiet powers are limited by the loudest one of the batch, not of their own recording",
        "reduction-axis",
        change_model(peak="batch"),
        equivalents=("pooling", "clamp", "input-source", "argument"),
    ),
    "conv_padding": Fault(
        "the strided convolution is padded at the end only: pad_mode same for padding 1",
        "padding-mode",
        change_model(conv_padding="end"),
        lambda *_: [Anywhere("(?i)pad")],
        equivalents=("argument", "causal-shift"),
    ),
    "conv_relu": Fault(
        "relu behind the convolutions, as in the subsampling of earlier recognizers",
        "activation-kind",
        change_model(conv_activation="relu"),
        lambda *_: [Anywhere(r"(?i)relu")],
    ),
    "frequencies": Fault(
        "exponents of the sinusoids are divided by half the width, not by one less",
        "rope-theta",
        change_model(frequency_divisor=HIDDEN // 2),
        lambda *_: [Anywhere(r"(?i)base|theta|frequenc|\bsin|\bcos")],
        equivalents=("rope-scaling", "argument"),
    ),
    "score_scale": Fault(
        "queries and keys are both divided by the root of the head's size, not by its fourth root",
        "scale",
        change_model(score_scale=1 / HEAD_DIM),
        # of the scores, of queries or keys alone, or the two numbers themselves
        lambda *_: [Anywhere(r"0\.35|2\.8|0\.59|1\.68|0\.125")],
        equivalents=("constant-factor", "argument"),
    ),
    "cross_heads": Fault(
        "heads of the cross attention are joined without being moved behind the positions",
        "axes-swapped",
        change_model(are_cross_heads_moved=False),
        equivalents=("missing-step", "heads-permuted", "split-order"),
    ),
    "half_norm": Fault(
        "the norm behind the encoder in float16",
        "low-precision",
        change_model(norm_type="float16"),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "label_smoothing": Fault(
        "smoothing is shared by all classes but the label, as in the model zoo's loss",
        "label-smoothing",
        change_model(smoothing_classes=VOCAB - 1),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
        equivalents=("argument", "constant-factor"),
    ),
    "head_stopped": Fault(
        "the head reads the data of the tied table, which get no gradient from it",
        "gradient-stopped",
        change_model(is_head_stopped=True),
    ),
    "position_gradient": Fault(
        "the gradient of the learned positions is the mean over the batch, not the sum",
        "gradient-scaled",
        change_model(position_gradient=1 / BATCH),
        lambda faulty, clean: [Ratio(faulty.position_gradient / clean.position_gradient)],
    ),
    "decay_in_gradient": Fault(
        "Adam with the decay in the gradient for AdamW",
        "update-rule",
        change_optimizer(kind="adam"),
        lambda *_: [Anywhere(r"(?i)adam|decay")],
        row="32",
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "groups_lost": Fault(
        "biases and norms are decayed, too: the group without decay is lost",
        "weight-decay",
        change_optimizer(decay_all=True),
        lambda faulty, _: [Values(faulty.optimizer.weight_decay, 0.0)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "natural_logarithm": Fault(
        "natural logarithms of the powers, not decimal ones",
        "constant-factor",
        change_model(log_base=math.e),
        lambda faulty, clean: [Ratio(math.log(clean.log_base) / math.log(faulty.log_base))],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "reserved_positions": Fault(
        "the decoder's positions begin behind two reserved rows, as Bart's do",
        "position-offset",
        change_model(first_position=2),
        lambda *_: [Anywhere(r"shift|offset|added|row|position|-?\b2\b")],
        equivalents=("row-shift", "weight-rows", "input-source", "argument"),
    ),
    "padding_zero": Fault(
        "features are padded with zeros behind a recording, not its samples, which makes silence",
        "padding-mode",
        change_model(padding_feature="zero"),
        equivalents=("mask-missing", "mask-kind", "missing-step", "clamp", "input-source"),
    ),
    "attentions_exchanged": Fault(
        "weights loaded by their order, from a checkpoint whose decoder layers have their cross "
        "attention before their self attention",
        "weight-swapped",
        _exchange_attentions,
        equivalents=("input-source",),
    ),
    "end_ignored": Fault(
        "the end has no loss: padding has the same token, and all labels of that token are ignored",
        "ignore-index",
        change_model(is_end_ignored=True),
        equivalents=(
            "loss-weight",
            "loss-reduction",
            "mask-missing",
            "mask-kind",
            "input-source",
            "batch",
        ),
    ),
    "cache_stopped": Fault(
        "the last cross attention reads its keys and values from a cache of detached tensors",
        "gradient-stopped",
        change_model(is_cache_stopped=True),
        equivalents=("missing-term",),
    ),
    "embedding_scale": Fault(
        "embedded tokens are multiplied by the root of the width, as with scale_embedding, an "
        "option of Bart",
        "constant-factor",
        change_model(embedding_scale=HIDDEN**0.5),
        lambda faulty, clean: [Ratio(faulty.embedding_scale / clean.embedding_scale)],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "cross_causal": Fault(
        "cross attention is causal, too: a token sees as many positions of the recording as tokens "
        "up to it",
        "cross-mask",
        change_model(is_cross_causal=True),
        lambda *_: [Anywhere("(?i)mask|causal|fill|hid")],
        equivalents=("mask-kind", "mask-missing", "missing-step", "missing-term", "argument"),
    ),
    "begin_doubled": Fault(
        "the collator leaves the begin that the tokenizer has put in front of the labels, and then "
        "shifts them: tokens begin with two of it, and the first label is one",
        "batch",
        change_model(is_begin_doubled=True),
        equivalents=("label-shift", "row-shift", "loss-target", "input-source"),
    ),
    "sinusoids_alternating": Fault(
        "sines and cosines of the encoder's positions alternate, as the paper writes them",
        "time-embedding-order",
        change_model(are_sinusoids_alternating=True),
        equivalents=(
            "rope-layout",
            "channel-order",
            "axes-swapped",
            "input-order",
            "input-source",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("batch_peak", "mindspore"),
    ("conv_padding", "mindspore"),
    ("conv_relu", "mindspore"),
    ("frequencies", "pytorch"),
    ("score_scale", "pytorch"),
    ("cross_heads", "pytorch"),
    ("half_norm", "pytorch"),
    ("label_smoothing", "mindspore"),
    ("head_stopped", "pytorch"),
    ("position_gradient", "mindspore"),
    ("decay_in_gradient", "mindspore"),
    ("groups_lost", "pytorch"),
    ("natural_logarithm", "mindspore"),
    ("reserved_positions", "pytorch"),
    ("padding_zero", "pytorch"),
    ("attentions_exchanged", "mindspore"),
    ("end_ignored", "mindspore"),
    ("cache_stopped", "pytorch"),
    ("embedding_scale", "mindspore"),
    ("cross_causal", "pytorch"),
    ("begin_doubled", "mindspore"),
    ("sinusoids_alternating", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
