"""Faults of the masked language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from claims import Anywhere, Ratio, Words

from families.deberta.architecture import LAYERS, Model, get_warmup_rate
from families.fault import Fault, change_model, change_optimizer

LAST = f"layers.{LAYERS - 1}"


def _swap_projections(model: Model) -> Model:
    """Give the position keys and the position queries of a layer each other's matrix."""
    key, query = f"{LAST}.position_k.weight", f"{LAST}.position_q.weight"
    weights = {**model.weights, key: model.weights[query], query: model.weights[key]}
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "score_scale": Fault(
        "scores divided by the root of the head's size only, not of three times as much",
        "scale",
        change_model(score_terms=1),
        lambda faulty, clean: [Ratio((clean.score_terms / faulty.score_terms) ** 0.5)],
        equivalents=("constant-factor",),
    ),
    "scores_untransposed": Fault(
        "scores of positions to contents are added by key and query, without being transposed",
        "axes-swapped",
        change_model(are_position_scores_transposed=False),
        equivalents=("missing-step", "relative-bias", "input-source", "input-order"),
    ),
    "linear_buckets": Fault(
        "relative positions are limited to the span, without logarithmic buckets",
        "relative-bias",
        change_model(has_log_buckets=False),
        equivalents=(
            "position-offset",
            "input-source",
            "row-shift",
            "missing-step",
            "rope-scaling",
            "clamp",
            "argument",
        ),
    ),
    "relative_norm": Fault(
        "no layer norm of the table of relative positions, as in the first version of the model",
        "norm-missing",
        change_model(has_relative_norm=False),
        lambda *_: [Anywhere("(?i)norm")],
        equivalents=("missing-step",),
    ),
    "decoder_keys": Fault(
        "keys and values of the mask decoder have absolute positions, not only its queries",
        "input-source",
        change_model(decoder_keys="positions"),
        equivalents=("missing-term", "missing-step", "input-order", "residual-order"),
    ),
    "projections_swapped": Fault(
        "the matrices of position keys and position queries exchanged on load",
        "weight-swapped",
        _swap_projections,
        lambda *_: [Anywhere("(?i)pos|parameter|weight")],
        equivalents=("input-order", "input-source"),
    ),
    "all_labels": Fault(
        "tokens that are not masked count in the loss of masked tokens, with label 0",
        "ignore-index",
        change_model(are_labels_ignored=False),
        equivalents=(
            "loss-weight",
            "loss-reduction",
            "mask-missing",
            "missing-step",
            "missing-term",
            "pooling",
            "input-source",
        ),
    ),
    "position_scores_half": Fault(
        "scores with relative positions in float16",
        "low-precision",
        change_model(are_position_scores_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "key_table_stopped": Fault(
        "position keys read the table of relative positions without a gradient to it",
        "gradient-stopped",
        change_model(is_key_table_stopped=True),
        equivalents=("missing-term",),
    ),
    "decoder_gradient": Fault(
        "the gradient of the tied table is added up twice over the first and the last stage",
        "gradient-scaled",
        change_model(decoder_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.decoder_gradient / clean.decoder_gradient)],
        equivalents=("constant-factor",),
    ),
    "warmup_step": Fault(
        "the schedule takes a step before the optimizer does: the rate of the second step",
        "learning-rate",
        change_optimizer(learning_rate=get_warmup_rate(2)),
        lambda faulty, clean: [
            Ratio(faulty.optimizer.learning_rate / clean.optimizer.learning_rate)
        ],
        optimizer=True,
    ),
    "decay_in_gradient": Fault(
        "nn.Adam for AdamW: the decay is added to the gradient and normalized with it",
        "update-rule",
        change_optimizer(kind="adam"),
        row="32",
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "decoder_keys_stopped": Fault(
        "the mask decoder takes keys and values from detached states of the encoder",
        "gradient-stopped",
        change_model(are_decoder_keys_stopped=True),
        equivalents=("missing-term",),
    ),
    "positions_early": Fault(
        "absolute positions are added to the words, too: position_biased_input has its default",
        "missing-term",
        change_model(are_positions_early=True),
        equivalents=("missing-step", "skip-missing", "input-source", "layer-order"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("score_scale", "pytorch"),
    ("scores_untransposed", "mindspore"),
    ("linear_buckets", "mindspore"),
    ("relative_norm", "pytorch"),
    ("decoder_keys", "pytorch"),
    ("projections_swapped", "pytorch"),
    ("all_labels", "mindspore"),
    ("position_scores_half", "mindspore"),
    ("key_table_stopped", "mindspore"),
    ("decoder_gradient", "pytorch"),
    ("warmup_step", "pytorch"),
    ("decay_in_gradient", "mindspore"),
    ("decoder_keys_stopped", "mindspore"),
    ("positions_early", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
