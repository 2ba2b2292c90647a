"""Faults of the joint-embedding predictive model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Words

from families.fault import Fault, change_model, change_weight
from families.jepa.architecture import HEADS, SIZE, Model


def _copy_encoder(model: Model) -> Model:
    """Return a target encoder with the weights of the context encoder."""
    weights = dict(model.weights)
    for name in model.weights:
        if name.startswith("target."):
            weights[name] = model.weights[name.replace("target", "context")]
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "context_interleaved": Fault(
        "the context is repeated for the target blocks by repeat_interleave, image by image, while "
        "mask tokens and targets are block by block: blocks get the context of another image",
        "axes-swapped",
        change_model(is_context_interleaved=True),
        equivalents=(
            "input-order",
            "row-shift",
            "heads-permuted",
            "channel-order",
            "split-order",
            "input-source",
            "missing-step",
            "argument",
        ),
    ),
    "targets_normed_jointly": Fault(
        "targets are normed over all patches and channels of an image, as the default axis of "
        "MindSpore's LayerNorm has it, not patch by patch",
        "reduction-axis",
        change_model(are_targets_normed_jointly=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|norm|mean|varian|reduc|patch|token|group|all")],
        equivalents=("norm-kind", "norm-groups", "axes-swapped", "argument"),
    ),
    "deviation_gradient_biased": Fault(
        "the deviation's own backward pass divides by the number of patches, not by one less, as "
        "its forward pass does",
        "gradient-scaled",
        change_model(is_deviation_gradient_biased=True),
        lambda *_: [Ratio((SIZE - 1) / SIZE)],
        equivalents=("constant-factor", "scale", "biased-variance"),
    ),
    "mask_token_initial": Fault(
        "the mask token is not loaded, a checkpoint of V-JEPA calls it mask_tokens: it is zero",
        "zeroed",
        change_weight("mask_token", np.zeros_like),
        lambda *_: [Anywhere("(?i)filled with 0|zero|missing|without|left out")],
        equivalents=("missing-term",),
    ),
    "overlaps_allowed": Fault(
        "patches of target blocks are not taken out of contexts: allow_overlap is on",
        "batch",
        change_model(are_overlaps_allowed=True),
        equivalents=("input-source", "mask-missing", "mask-kind"),
    ),
    "outputs_first": Fault(
        "predictions are read from the first outputs of the predictor, which are those of the "
        "context, not from behind it",
        "input-source",
        change_model(are_outputs_first=True),
        equivalents=("row-shift", "position-offset", "split-order", "input-order", "argument"),
    ),
    "target_copied": Fault(
        "a checkpoint is loaded without its target encoder, which begins as a copy of the context "
        "encoder",
        "weight-swapped",
        _copy_encoder,
        equivalents=("input-source",),
    ),
    "maps_detached": Fault(
        "attention maps of the context encoder, which are returned for plots, are detached before "
        "they are multiplied with the values",
        "gradient-stopped",
        change_model(are_maps_detached=True),
        equivalents=("missing-term",),
    ),
    "class_position": Fault(
        "the encoders' positions come from a model with a class token, whose row is the first one: "
        "each patch has the position of the patch before it",
        "row-shift",
        change_model(has_class_position=True),
        lambda *_: [Anywhere(r"(?i)shift|row|position|offset|\b1\b")],
        equivalents=("position-offset", "weight-rows", "input-source"),
    ),
    "predictor_heads": Fault(
        "the predictor has its default number of heads, not that of the encoder",
        "argument",
        change_model(predictor_heads=2 * HEADS),
        equivalents=("axes-swapped", "split-order", "heads-permuted", "norm-groups", "scale"),
    ),
    "hinge_first": Fault(
        "the hinge is that of each block's deviation, and its mean is taken, not the hinge of the "
        "mean deviation",
        "layer-order",
        change_model(is_hinge_first=True),
        equivalents=("pooling", "loss-reduction", "clamp", "activation-kind", "input-source"),
    ),
    "target_half": Fault(
        "the target encoder, which has no gradient, computes in bfloat16 by autocast",
        "low-precision",
        change_model(is_target_half=True),
        lambda *_: [Words("bfloat16")],
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("context_interleaved", "mindspore"),
    ("targets_normed_jointly", "mindspore"),
    ("deviation_gradient_biased", "mindspore"),
    ("mask_token_initial", "mindspore"),
    ("overlaps_allowed", "mindspore"),
    ("outputs_first", "mindspore"),
    ("target_copied", "pytorch"),
    ("maps_detached", "pytorch"),
    ("class_position", "pytorch"),
    ("predictor_heads", "pytorch"),
    ("hinge_first", "pytorch"),
    ("target_half", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "transformers": ("", "transformers"),
    "written": ("written", ""),
    "both": ("written", "transformers"),
}
