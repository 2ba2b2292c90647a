"""Faults of the multimodal decoder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Values, Words

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.vlm.architecture import IMAGE_TOKENS


def _reshape_flat_kernel(kernel: np.ndarray) -> np.ndarray:
    """Return what a kernel of flat patches becomes if their channels are taken for the first axis.

    They are the last one: a flat patch is row, column, channel.
    """
    return kernel.transpose(0, 2, 3, 1).reshape(kernel.shape)


FAULTS: Mapping[str, Fault] = {
    "flat_kernel": Fault(
        "the kernel of flat patches, a matrix in JAX, is reshaped to (channel, row, column), "
        "but its patches are row, column, channel",
        "kernel-axes",
        change_weight("vision.patch.weight", _reshape_flat_kernel),
        lambda *_: [Anywhere("axes|axis|transposed|order")],
        equivalents=("axes-swapped", "weight-transposed", "channel-order", "weight-rows"),
    ),
    "cache_detached": Fault(
        "keys and values of the last layer go through a cache for generation, which detaches them",
        "gradient-stopped",
        change_model(is_cache_detached=True),
    ),
    "columns_first": Fault(
        "merged patches column by column, as the first version of InternVL's pixel shuffle",
        "axes-swapped",
        change_model(are_columns_first=True),
        equivalents=("missing-step", "input-order", "row-shift", "split-order"),
    ),
    "projector_tanh": Fault(
        "gelu of the projector in the tanh form, that of the vision tower, not in the exact one",
        "gelu-variant",
        change_model(projector_gelu="tanh"),
        lambda *_: [Anywhere("(?i)gelu")],
        equivalents=("activation-kind", "argument"),
    ),
    "images_scaled": Fault(
        "tokens are multiplied by the root of the hidden size behind the insertion of the images, "
        "so that images are, too",
        "layer-order",
        change_model(are_images_scaled=True),
        equivalents=("constant-factor", "scale", "input-source", "missing-step"),
    ),
    "text_positions": Fault(
        "text behind an image counts on from its number of tokens, not from its largest position",
        "position-offset",
        change_model(image_span=IMAGE_TOKENS),
        equivalents=("constant-offset", "argument", "input-source"),
    ),
    "sections_interleaved": Fault(
        "time, row and column take turns in the frequencies, as in Qwen3-VL, not in sections",
        "rope-layout",
        change_model(are_sections_interleaved=True),
        equivalents=("split-order", "input-order", "input-source", "axes-swapped"),
    ),
    "angles_half": Fault(
        "positions times frequencies in bfloat16, by autocast",
        "low-precision",
        change_model(are_angles_half=True),
        lambda *_: [Words(r"\bbfloat16")],
    ),
    "heads_normed_together": Fault(
        "queries and keys are normed over all heads of a token, as in OLMo 2, not head by head",
        "norm-groups",
        change_model(are_heads_normed_together=True),
        equivalents=("reduction-axis", "norm-kind", "argument"),
    ),
    "images_bidirectional": Fault(
        "the causal mask compares times: those of an image are equal, so that its vectors see each "
        "other in both directions",
        "mask-kind",
        change_model(are_images_bidirectional=True),
        equivalents=("mask-missing", "mask-shifted", "input-source"),
    ),
    "placeholders_counted": Fault(
        "labels that are placeholders of an image count in the loss",
        "ignore-index",
        change_model(are_placeholders_counted=True),
        equivalents=(
            "loss-reduction",
            "loss-weight",
            "mask-missing",
            "argument",
            "missing-step",
            "pooling",
        ),
    ),
    "adam_eps": Fault(
        "AdamW has the eps of MindSpore Transformers, 1e-6, not 1e-8",
        "optimizer-epsilon",
        change_optimizer(eps=1e-6),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        optimizer=True,
        equivalents=("argument",),
    ),
    "last_query_gradient": Fault(
        "a kernel's backward pass writes the gradient of a key and a value query by query without "
        "adding up: only that of the last one is left",
        "gradient-stopped",
        change_model(is_gradient_of_last_query=True),
        equivalents=("missing-term", "missing-step", "input-source", "pooling", "gradient-scaled"),
    ),
    "features_unnormed": Fault(
        "the projector reads the last hidden states of the vision tower, which are not normed",
        "norm-missing",
        change_model(are_features_normed=False),
        lambda *_: [Anywhere("(?i)norm")],
        equivalents=("missing-step", "input-source", "skip-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("flat_kernel", "pytorch"),
    ("cache_detached", "pytorch"),
    ("columns_first", "mindspore"),
    ("projector_tanh", "pytorch"),
    ("images_scaled", "mindspore"),
    ("text_positions", "mindspore"),
    ("sections_interleaved", "pytorch"),
    ("angles_half", "pytorch"),
    ("heads_normed_together", "mindspore"),
    ("images_bidirectional", "pytorch"),
    ("placeholders_counted", "mindspore"),
    ("adam_eps", "mindspore"),
    ("features_unnormed", "mindspore"),
    ("last_query_gradient", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "packed": ("", "packed"),
    "sequence_first": ("sequence_first", ""),
}
