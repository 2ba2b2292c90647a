"""Faults of the querying transformer."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio

from families.blip.architecture import QUERIES, TEMPERATURE, Model
from families.fault import Fault, change_model


def _exchange_projections(model: Model) -> Model:
    """Exchange the projections of images and of texts, weights and biases."""
    weights = dict(model.weights)
    for name in ("weight", "bias"):
        image, text = f"image_projection.{name}", f"text_projection.{name}"
        weights[image], weights[text] = weights[text], weights[image]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "cross_for_all": Fault(
        "cross-attention reads the whole sequence, not its queries only: tokens attend to the "
        "image, too",
        "input-source",
        change_model(is_cross_for_all=True),
        equivalents=(
            "mask-missing",
            "cross-mask",
            "missing-step",
            "missing-term",
            "split-order",
            "skip-source",
            "layer-order",
        ),
    ),
    "temperature_factor": Fault(
        "similarities are multiplied by the temperature, as other models have its inverse",
        "scale",
        change_model(is_temperature_factor=True),
        lambda *_: [Ratio(TEMPERATURE**2)],
        equivalents=("constant-factor", "missing-step", "argument"),
    ),
    "queries_see_text": Fault(
        "queries see the text in the pass of the language loss, whose mask is causal for tokens "
        "only: later tokens come back through them",
        "mask-kind",
        change_model(do_queries_see_text=True),
        equivalents=("mask-missing", "mask-shifted", "cross-mask", "mask-fill", "input-source"),
    ),
    "negatives_detached": Fault(
        "the features of other images are gathered where they are drawn, without a gradient",
        "gradient-stopped",
        change_model(are_negatives_detached=True),
        equivalents=("missing-term",),
    ),
    "projections_exchanged": Fault(
        "the converter gives the projections of images and of texts each other's weights",
        "weight-swapped",
        _exchange_projections,
        equivalents=("input-source", "weight-rows", "input-order", "layer-order"),
    ),
    "positions_after_queries": Fault(
        "positions of the text count on from the queries in the pass of the language loss, whose "
        "cache holds them",
        "position-offset",
        change_model(first_position=QUERIES),
        lambda *_: [Anywhere(r"(?i)shift|offset|added|constant|row|position|slice|-?\b5\b")],
        equivalents=("row-shift", "constant-offset", "input-source", "argument", "batch"),
    ),
    "queries_averaged": Fault(
        "the similarity of an image and a text is the mean of its queries, not the largest one",
        "pooling",
        change_model(are_queries_averaged=True),
        lambda *_: [Anywhere("(?i)mean|average|max|large|reduc|pool")],
        equivalents=("missing-step", "input-source", "activation-kind", "argument"),
    ),
    "text_feed_forward": Fault(
        "queries pass the feed-forward layer of the text in the last layer, not their own",
        "input-source",
        change_model(has_query_feed_forward=False),
        equivalents=("weight-swapped", "missing-step", "layer-order", "input-order"),
    ),
    "queries_unnormed": Fault(
        "the norm of the embeddings is applied to the text before the queries join it",
        "norm-missing",
        change_model(are_queries_normed=False),
        equivalents=("layer-order", "missing-step", "input-source"),
    ),
    "matches_last": Fault(
        "labels of matching are those of true pairs behind the others, which come first",
        "loss-target",
        change_model(are_matches_last=True),
        equivalents=("row-shift", "input-order", "label-shift", "batch", "input-source"),
    ),
    "gradient_of_all": Fault(
        "a fused kernel keeps no number of the best query: all of them get its gradient",
        "straight-through",
        change_model(is_gradient_of_all=True),
        equivalents=(
            "gradient-scaled",
            "mask-missing",
            "missing-step",
            "missing-term",
            "pooling",
            "input-source",
        ),
    ),
    "cached_keys_detached": Fault(
        "the language loss reads the queries' keys from a cache that keeps them without a gradient",
        "gradient-stopped",
        change_model(are_cached_keys_detached=True),
        equivalents=("missing-term",),
    ),
    "other_mask_own": Fault(
        "texts that are drawn for an image have the padding mask of the image's own text: the "
        "masks are repeated, not drawn",
        "mask-kind",
        change_model(is_other_mask_own=True),
        lambda *_: [Anywhere("(?i)mask|fill|padd|row|order|shift|gather|read|key|column|token")],
        equivalents=(
            "mask-missing",
            "mask-shifted",
            "input-source",
            "input-order",
            "row-shift",
            "missing-step",
        ),
    ),
    "gathered_stopped": Fault(
        "features are gathered from all ranks without a gradient: those of images have none of the "
        "loss of texts, those of texts none of the loss of images",
        "gradient-stopped",
        change_model(are_gathered_stopped=True),
        equivalents=("missing-term",),
    ),
    "padding_labels": Fault(
        "padding is a label of the language loss: the collator pads labels with token 0, not with "
        "the number that the loss ignores",
        "ignore-index",
        change_model(are_padding_labels_counted=True),
        equivalents=(
            "mask-missing",
            "loss-target",
            "loss-reduction",
            "loss-weight",
            "missing-step",
            "input-source",
        ),
    ),
    "queries_causal": Fault(
        "the mask of the language loss is causal for the whole sequence, as a decoder's: a query "
        "does not see those behind it",
        "mask-kind",
        change_model(are_queries_causal=True),
        lambda *_: [Anywhere("(?i)mask|causal|fill|hid|later|diagonal")],
        equivalents=("mask-missing", "mask-shifted", "mask-fill"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("cross_for_all", "mindspore"),
    ("temperature_factor", "mindspore"),
    ("queries_see_text", "mindspore"),
    ("cached_keys_detached", "mindspore"),
    ("projections_exchanged", "mindspore"),
    ("positions_after_queries", "mindspore"),
    ("queries_averaged", "pytorch"),
    ("text_feed_forward", "pytorch"),
    ("queries_unnormed", "pytorch"),
    ("matches_last", "pytorch"),
    ("gradient_of_all", "pytorch"),
    ("negatives_detached", "pytorch"),
    ("other_mask_own", "mindspore"),
    ("gathered_stopped", "pytorch"),
    ("padding_labels", "mindspore"),
    ("queries_causal", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "cached": ("", "cached"),
    "fused": ("", "fused"),
    "written": ("written", ""),
}
