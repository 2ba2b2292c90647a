"""Faults of the bidirectional encoder."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values, Words

from families.bert.architecture import RESERVED_POSITIONS
from families.fault import Fault, change_model, change_optimizer, change_weight

FAULTS: Mapping[str, Fault] = {
    "segments_ignored": Fault(
        "the model is called without segments: all tokens are of the first one, a default",
        "input-source",
        change_model(are_segments_ignored=True),
        equivalents=("batch", "missing-term", "missing-step", "zeroed", "weight-rows", "row-shift"),
    ),
    "first_position": Fault(
        "positions begin behind two reserved rows, as those of RoBERTa",
        "position-offset",
        change_model(first_position=RESERVED_POSITIONS),
        lambda *_: [Anywhere(r"shift|offset|added|constant|row|position|-?\b2\b")],
        equivalents=("constant-offset", "row-shift", "argument", "input-source"),
    ),
    "mask_added": Fault(
        "the mask of ones and zeros is added to the scores, not large negative numbers",
        "mask-fill",
        change_model(is_mask_added=True),
        row="47",
        equivalents=(
            "mask-missing",
            "mask-kind",
            "missing-step",
            "missing-term",
            "input-source",
            "constant-offset",
            "argument",
        ),
    ),
    "gelu_tanh": Fault(
        "the tanh form of gelu, a framework's default, in the feed-forward layers",
        "gelu-variant",
        change_model(activation="gelu_tanh"),
        lambda *_: [Words("tanh", "erf|exact|none")],
        equivalents=("activation-kind", "argument"),
    ),
    "pooler_transposed": Fault(
        "the pooler's kernel of a TensorFlow checkpoint, which is square, loaded as it is",
        "weight-transposed",
        change_weight("pooler.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed")],
    ),
    "slot_offsets": Fault(
        "positions of masked tokens index the flat batch without the offsets of their sequences",
        "missing-step",
        change_model(has_slot_offsets=False),
        equivalents=(
            "missing-term",
            "input-source",
            "row-shift",
            "position-offset",
            "constant-offset",
            "batch",
        ),
    ),
    "order_reversed": Fault(
        "labels of the order of segments have the other meaning: 1 if they follow each other",
        "loss-target",
        change_model(is_order_reversed=True),
        equivalents=(
            "label-shift",
            "input-source",
            "input-order",
            "batch",
            "missing-step",
            "split-order",
        ),
    ),
    "norm_first": Fault(
        "norms before attention and feed-forward layer, not behind the residual sums",
        "layer-order",
        change_model(is_norm_first=True),
        equivalents=("input-source", "residual-order"),
    ),
    "decoder_untied": Fault(
        "the decoder has a copy of the table of words, which gets no gradient from it",
        "gradient-stopped",
        change_model(is_decoder_tied=False),
        row="45",
        equivalents=("missing-term", "weight-swapped", "input-source"),
    ),
    "position_gradient": Fault(
        "the gradient of the positions is averaged over four ranks that hold a part each",
        "gradient-scaled",
        change_model(position_gradient=0.25),
        lambda faulty, clean: [Ratio(faulty.position_gradient / clean.position_gradient)],
        row="15",
        equivalents=("constant-factor",),
    ),
    "pooled_mean": Fault(
        "the pooler reads the mean of all states, not that of the first token",
        "pooling",
        change_model(pooled_tokens="mean"),
        lambda *_: [Anywhere("(?i)mean|average|first|element|slice|select|pool|row")],
        equivalents=("input-source", "reduction-axis", "missing-step", "argument"),
    ),
    "empty_slots": Fault(
        "the first loss is the mean of all slots, also of those without a masked token",
        "loss-weight",
        change_model(are_empty_slots_counted=True),
        equivalents=(
            "loss-reduction",
            "ignore-index",
            "mask-missing",
            "missing-step",
            "missing-term",
            "pooling",
            "input-source",
        ),
    ),
    "decay_all": Fault(
        "weight decay of biases and norms too, whose names the filter does not know",
        "weight-decay",
        change_optimizer(decay_all=True),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, 0.0)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "adam_eps": Fault(
        "AdamW has a framework's eps, 1e-8, not 1e-6",
        "optimizer-epsilon",
        change_optimizer(eps=1e-8),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        row="32",
        optimizer=True,
    ),
    "bias_correction": Fault(
        "AdamW without the correction of its first steps, as in the first code of the model",
        "bias-correction",
        change_optimizer(bias_correction=False),
        row="32",
        optimizer=True,
        equivalents=("update-rule", "learning-rate"),
    ),
    "feed_forward_half": Fault(
        "the feed-forward layers in bfloat16",
        "low-precision",
        change_model(is_feed_forward_half=True),
        lambda *_: [Words("bfloat16")],
    ),
    "groups_interleaved": Fault(
        "the number of a layer's group is that of the layer modulo the groups: groups take turns",
        "weight-swapped",
        change_model(are_groups_interleaved=True),
        equivalents=("layer-order", "input-source", "input-order"),
    ),
    "last_call_gradient": Fault(
        "layers of a group lie on stages that do not add up the gradients of their shared "
        "weights: only that of the last one counts",
        "gradient-stopped",
        change_model(is_gradient_of_last_call=True),
        equivalents=("missing-term", "gradient-scaled", "update-missing"),
    ),
    "queries_masked": Fault(
        "the mask of padding is on the axis of the queries, not of the keys: scores of queries of "
        "padding are masked, and all tokens see its keys",
        "axes-swapped",
        change_model(are_queries_masked=True),
        equivalents=(
            "mask-missing",
            "mask-kind",
            "missing-step",
            "missing-term",
            "input-source",
            "argument",
        ),
    ),
    "softmax_gradient": Fault(
        "the backward pass of a fused attention multiplies gradients by the probabilities, but "
        "does not subtract the sum of both over the keys",
        "missing-term",
        change_model(is_softmax_gradient_plain=True),
        equivalents=("gradient-stopped", "gradient-scaled", "straight-through", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("segments_ignored", "pytorch"),
    ("first_position", "mindspore"),
    ("mask_added", "pytorch"),
    ("gelu_tanh", "mindspore"),
    ("pooler_transposed", "mindspore"),
    ("slot_offsets", "mindspore"),
    ("order_reversed", "pytorch"),
    ("norm_first", "pytorch"),
    ("decoder_untied", "pytorch"),
    ("position_gradient", "mindspore"),
    ("pooled_mean", "pytorch"),
    ("empty_slots", "mindspore"),
    ("decay_all", "mindspore"),
    ("adam_eps", "pytorch"),
    ("bias_correction", "mindspore"),
    ("feed_forward_half", "pytorch"),
    ("groups_interleaved", "mindspore"),
    ("last_call_gradient", "pytorch"),
    ("queries_masked", "mindspore"),
    ("softmax_gradient", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "one_hot": ("one_hot", ""),
}
