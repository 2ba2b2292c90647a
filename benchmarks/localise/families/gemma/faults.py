"""Faults of the decoder with sliding windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer
from families.gemma.architecture import GLOBAL_BASE, GROUP, HEAD_DIM, LAYERS, WINDOW, Model


def _exchange_norms(model: Model) -> Model:
    """Exchange the weights of two norms in all layers.

    In Llama, ``post_attention_layernorm`` is the norm before the feed-forward layer.
    """
    weights = dict(model.weights)
    for n in range(LAYERS):
        behind, before = (
            f"layers.{n}.{norm}.weight" for norm in ("attention_post_norm", "ffn_norm")
        )
        weights[behind], weights[before] = weights[before], weights[behind]
    return replace(model, weights=weights)


def _add_one(model: Model) -> Model:
    """Add one to the weights of all norms."""
    weights = {
        name: values + 1 if name.endswith("norm.weight") else values
        for name, values in model.weights.items()
    }
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "query_one": Fault(
        "the norms of queries and keys are Qwen3's: they multiply by w, not 1 + w",
        "constant-offset",
        change_model(has_query_one=False),
        equivalents=("missing-term", "missing-step", "argument", "input-source", "affine-missing"),
    ),
    "scale_rounded": Fault(
        "the root of the hidden size, by which the embedding is multiplied, is a bfloat16",
        "constant-factor",
        change_model(is_scale_rounded=True),
        lambda faulty, clean: [Ratio(faulty.embedding_scale() / clean.embedding_scale())],
        equivalents=("scale", "argument", "low-precision"),
    ),
    "local_base": Fault(
        "one rotary base for all layers: sliding ones have that of the others",
        "rope-theta",
        change_model(local_base=GLOBAL_BASE),
        lambda *_: [
            Anywhere(r"base|theta|frequenc|angle|table|cos|sin|10000|1e\+?0[46]|read|inv_")
        ],
        equivalents=("input-source", "rope-scaling", "argument"),
    ),
    "window": Fault(
        "a sliding layer sees one token more: the own one is not counted in its window",
        "mask-shifted",
        change_model(window=WINDOW + 1),
        equivalents=("mask-kind", "mask-missing", "input-source", "argument"),
    ),
    "norms_swapped": Fault(
        "weights loaded by Llama's names: the norm behind attention and that before the "
        "feed-forward layer are exchanged",
        "weight-swapped",
        _exchange_norms,
        equivalents=("input-source",),
    ),
    "keys_tiled": Fault(
        "keys and values are repeated as 0 1 0 1, not as 0 0 1 1",
        "heads-permuted",
        change_model(are_keys_tiled=True),
        equivalents=("axes-swapped", "input-source", "input-order", "split-order", "row-shift"),
    ),
    "cap_missing": Fault(
        "logits are not capped",
        "soft-cap",
        change_model(has_cap=False),
        equivalents=("missing-step", "clamp", "activation-kind"),
    ),
    "padding_counted": Fault(
        "the framework's ignore_index, -100: the losses of padding count",
        "ignore-index",
        change_model(ignore_index=-100),
        equivalents=(
            "loss-reduction",
            "loss-weight",
            "mask-missing",
            "argument",
            "missing-step",
            "pooling",
        ),
    ),
    "cap_straight": Fault(
        "the gradient passes the soft cap of the logits as it is",
        "straight-through",
        change_model(is_cap_straight=True),
        equivalents=("missing-step", "missing-term", "soft-cap", "input-source"),
    ),
    "statistic_stopped": Fault(
        "no gradient through the mean square in the last norm",
        "gradient-stopped",
        change_model(is_statistic_stopped=True),
        equivalents=("missing-term", "missing-step"),
    ),
    "coupled_decay": Fault(
        "Adam for AdamW: the decay is added to the gradient",
        "update-rule",
        change_optimizer(kind="adam"),
        row="32",
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "default_decay": Fault(
        "AdamW has the framework's weight decay, 0.01, not 0.1",
        "weight-decay",
        change_optimizer(weight_decay=0.01),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        row="32",
        optimizer=True,
        equivalents=("argument",),
    ),
    "query_scalar": Fault(
        "scores are divided by the root of the head's size, not of the query scalar",
        "scale",
        change_model(query_scalar=HEAD_DIM),
        lambda faulty, clean: [Ratio((faulty.query_scalar / clean.query_scalar) ** -0.5)],
        equivalents=("constant-factor", "argument"),
    ),
    "sum_normed": Fault(
        "the norm behind the feed-forward layer is applied to the sum with the residual",
        "layer-order",
        change_model(is_sum_normed=True),
        equivalents=("residual-order", "input-source", "skip-source"),
    ),
    "gelu_erf": Fault(
        "gelu in its exact form, an operator's default, not in the tanh form",
        "gelu-variant",
        change_model(activation="gelu_erf"),
        lambda *_: [Anywhere("(?i)gelu")],
        equivalents=("activation-kind", "argument"),
    ),
    "turned_first": Fault(
        "queries and keys are normed behind the rotation, not before it",
        "layer-order",
        change_model(is_turned_first=True),
        equivalents=("input-source",),
    ),
    "scores_capped": Fault(
        "scores are capped at 50, as Gemma 2's are, where Gemma 3 norms queries and keys instead",
        "soft-cap",
        change_model(are_scores_capped=True),
        lambda *_: [Anywhere(r"(?i)tanh|\bcap|\b50\b")],
        equivalents=("missing-step", "clamp", "activation-kind"),
    ),
    "group_gradient": Fault(
        "the gradient of a key and a value is the mean over the queries that share it, not the sum",
        "gradient-scaled",
        change_model(group_gradient=1 / GROUP),
        lambda faulty, clean: [Ratio(faulty.group_gradient / clean.group_gradient)],
    ),
    "global_divisor": Fault(
        "positions are divided by 8 in the layers without a window, as in all but the smallest of "
        "the published models",
        "rope-scaling",
        change_model(global_divisor=8.0),
        lambda faulty, clean: [Ratio(clean.global_divisor / faulty.global_divisor)],
        equivalents=("rope-theta", "constant-factor", "scale", "argument", "input-source"),
    ),
    "head_stopped": Fault(
        "the matrix of the logits is a copy of the table: their gradient does not reach the table",
        "gradient-stopped",
        change_model(is_head_stopped=True),
        equivalents=("missing-term", "missing-step"),
    ),
    "turn_gradient": Fault(
        "the backward pass of a fused rotary kernel does not negate the sines: gradients are "
        "turned in the direction of queries and keys, not back",
        "rope-direction",
        change_model(is_turn_repeated=True),
        equivalents=("constant-factor", "scale", "rope-layout", "argument", "input-source"),
    ),
    "values_normed": Fault(
        "values are normed too, without a weight, as in Gemma 3n",
        "norm-missing",
        change_model(are_values_normed=True),
        lambda *_: [Anywhere("(?i)norm")],
        equivalents=("missing-step", "input-source", "scale"),
    ),
    "one_added_twice": Fault(
        "weights of norms come from a GGUF file, in which they are 1 + w, and 1 is added again",
        "constant-offset",
        _add_one,
        lambda *_: [Anywhere(r"(?i)offset|added|adds|constant|\bones?\b|\b1\b")],
        equivalents=("missing-term", "missing-step", "input-source"),
    ),
    "windows_odd": Fault(
        "the odd layers have the window, not the even ones: the pattern is counted from 1",
        "mask-kind",
        change_model(are_windows_odd=True),
        equivalents=("mask-missing", "input-source", "argument"),
    ),
    "labels_shifted_twice": Fault(
        "labels are shifted in front of the loss, which shifts them again: a token's label is the "
        "one after the next",
        "label-shift",
        change_model(label_shift=2),
        equivalents=("loss-target", "input-source", "row-shift", "missing-step"),
    ),
    "scores_half": Fault(
        "scores and their softmax in bfloat16: the softmax lacks its cast to float32",
        "low-precision",
        change_model(are_scores_half=True),
        lambda *_: [Words("bfloat16")],
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("query_one", "mindspore"),
    ("scale_rounded", "pytorch"),
    ("local_base", "pytorch"),
    ("window", "mindspore"),
    ("norms_swapped", "pytorch"),
    ("keys_tiled", "mindspore"),
    ("cap_missing", "pytorch"),
    ("padding_counted", "mindspore"),
    ("cap_straight", "mindspore"),
    ("statistic_stopped", "pytorch"),
    ("coupled_decay", "mindspore"),
    ("default_decay", "pytorch"),
    ("query_scalar", "pytorch"),
    ("sum_normed", "mindspore"),
    ("gelu_erf", "mindspore"),
    ("turned_first", "pytorch"),
    ("scores_capped", "pytorch"),
    ("group_gradient", "mindspore"),
    ("global_divisor", "mindspore"),
    ("head_stopped", "pytorch"),
    ("turn_gradient", "mindspore"),
    ("values_normed", "pytorch"),
    ("one_added_twice", "mindspore"),
    ("windows_odd", "pytorch"),
    ("labels_shifted_twice", "mindspore"),
    ("scores_half", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "grouped": ("grouped", ""),
}
