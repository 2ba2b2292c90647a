"""Faults and cases of the contrastive model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.clip.architecture import HEAD_DIM
from families.fault import Fault, change_model, change_weight

FAULTS: Mapping[str, Fault] = {
    "image_eps": Fault(
        "the last norm of the images has the framework's eps, 1e-5, for 1e-6",
        "epsilon",
        change_model(image_eps=1e-5),
        lambda faulty, clean: [Values(faulty.image_eps, clean.image_eps)],
    ),
    "causal_mask": Fault(
        "no causal mask in the last layer of the texts",
        "mask-missing",
        change_model(is_mask_causal=False),
        lambda *_: [Words("no mask|has none", "hides from diagonal 1|a causal mask$")],
    ),
    "fused_rows": Fault(
        "a fused projection of q, k and v is read head by head",
        "split-order",
        change_model(fused_rows="heads"),
        row="42",
    ),
    "gelu": Fault(
        "exact gelu for quick gelu",
        "gelu-variant",
        change_model(activation="gelu"),
        lambda *_: [Words(r"gelu \(erf\)", r"quick|1\.702|sigmoid")],
    ),
    "text_pooling": Fault(
        "a text's feature is that of its padding, not of its end",
        "pooling",
        change_model(text_pooling="last"),
    ),
    "normalized_axis": Fault(
        "features normalized over the batch, an operator's default",
        "reduction-axis",
        change_model(normalized_axis=0),
        lambda *_: [Anywhere("axis|axes|columns")],
    ),
    "scale_exponential": Fault(
        "similarities multiplied by the logarithm of their factor",
        "missing-step",
        change_model(is_scale_exponential=False),
        lambda *_: [Anywhere("exp")],
    ),
    "half_similarities": Fault(
        "similarities in float16",
        "low-precision",
        change_model(are_similarities_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "projection_transposed": Fault(
        "the projection of the texts, a plain matrix, loaded into a linear layer",
        "weight-transposed",
        change_weight("text.projection.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed")],
    ),
    "gathered_detached": Fault(
        "no gradient to the gathered images in the loss of the texts",
        "gradient-stopped",
        change_model(are_gathered_detached=True),
    ),
    "loss_sum": Fault(
        "the sum of both losses, not their mean",
        "constant-factor",
        change_model(loss_share=1.0),
        lambda faulty, clean: [Ratio(faulty.loss_share / clean.loss_share)],
    ),
    "layer_scale": Fault(
        "the scales of the last block of images were not loaded",
        "zeroed",
        change_weight("image.blocks.1.scale", np.ones_like),
        lambda *_: [Anywhere("filled with 1|all ones")],
    ),
    "label_offset": Fault(
        "labels begin at 1, as those of another rank",
        "label-shift",
        change_model(label_offset=1),
        lambda *_: [Anywhere("shift|order|label")],
        equivalents=("row-shift",),
    ),
    "text_gradient": Fault(
        "the gradient of the texts is summed over two ranks that have the same",
        "gradient-scaled",
        change_model(text_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.text_gradient / clean.text_gradient)],
    ),
    "images_unnormalized": Fault(
        "features of images are not divided by their length",
        "missing-step",
        change_model(are_images_normalized=False),
        lambda *_: [Anywhere("norm|length|divi")],
        equivalents=("norm-missing",),
    ),
    "text_loss": Fault(
        "the loss of texts reads the similarities image by image, as the other loss",
        "input-source",
        change_model(is_text_loss_transposed=False),
        equivalents=("axes-swapped", "softmax-axis"),
    ),
    "norm_before_pooling": Fault(
        "the last norm of the images is applied to all cells, before their mean",
        "layer-order",
        change_model(is_pooled_first=False),
        equivalents=("input-source",),
    ),
    "vocabulary_shifted": Fault(
        "the embedding is that of a vocabulary with one more special token in front",
        "row-shift",
        change_weight("text.embedding.weight", lambda table: np.roll(table, 1, axis=0)),
        lambda *_: [Anywhere("shift|row|order")],
        equivalents=("weight-rows", "label-shift", "position-offset"),
    ),
    "images_reversed": Fault(
        "images read as blue, green, red, the order of OpenCV",
        "channel-order",
        change_model(are_images_reversed=True),
        equivalents=("batch",),
    ),
    "residual_normed": Fault(
        "the last mlp of the texts is added to the norm's output, not to its input",
        "residual-order",
        change_model(is_residual_normed=True),
        equivalents=("input-source", "skip-source", "layer-order"),
    ),
    "query_scaled_twice": Fault(
        "queries are scaled, and fused attention scales the scores again",
        "scale",
        change_model(is_query_scaled_twice=True),
        lambda *_: [Ratio(HEAD_DIM**-0.5)],
        equivalents=("constant-factor", "argument"),
    ),
    "output_bias": Fault(
        "the output projection of an attention has no bias, as its flag for q, k and v says",
        "bias-missing",
        change_model(has_output_bias=False),
        lambda *_: [Anywhere("bias")],
        equivalents=("missing-term", "missing-step"),
    ),
    "text_length": Fault(
        "features of texts are divided by the sum of absolute values: the 1 of an axis is an order",
        "norm-kind",
        change_model(text_length=1),
        equivalents=("argument", "missing-step"),
    ),
    "text_unscaled": Fault(
        "similarities are multiplied by their factor in the loss of images only, not in the other",
        "missing-step",
        change_model(is_text_scaled=False),
        equivalents=("constant-factor", "scale", "input-source", "loss-weight"),
    ),
    "text_heads": Fault(
        "the texts' attention has half as many heads, twice as wide: their number is derived from "
        "the width, as for a larger model",
        "argument",
        change_model(text_heads=2),
        lambda *_: [Anywhere("(?i)head|shape|split|axes|scale")],
        equivalents=("axes-swapped", "split-order", "heads-permuted", "norm-groups", "scale"),
    ),
    "sigmoid_gradient": Fault(
        "quick gelu's own backward pass lacks the factor 1.702 of its sigmoid's derivative",
        "gradient-scaled",
        change_model(sigmoid_gradient=1 / 1.702),
        lambda faulty, clean: [Ratio(faulty.sigmoid_gradient / clean.sigmoid_gradient)],
        equivalents=("constant-factor", "missing-term", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("image_eps", "pytorch"),
    ("causal_mask", "pytorch"),
    ("fused_rows", "pytorch"),
    ("gelu", "mindspore"),
    ("text_pooling", "mindspore"),
    ("normalized_axis", "mindspore"),
    ("scale_exponential", "pytorch"),
    ("half_similarities", "pytorch"),
    ("projection_transposed", "mindspore"),
    ("gathered_detached", "mindspore"),
    ("loss_sum", "mindspore"),
    ("layer_scale", "pytorch"),
    ("label_offset", "mindspore"),
    ("text_gradient", "pytorch"),
    ("images_unnormalized", "pytorch"),
    ("text_loss", "mindspore"),
    ("norm_before_pooling", "pytorch"),
    ("vocabulary_shifted", "mindspore"),
    ("images_reversed", "pytorch"),
    ("residual_normed", "mindspore"),
    ("query_scaled_twice", "pytorch"),
    ("output_bias", "mindspore"),
    ("text_length", "mindspore"),
    ("text_unscaled", "pytorch"),
    ("sigmoid_gradient", "mindspore"),
    ("text_heads", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "written": ("", "written"),
    "channels_first": ("channels_first", ""),
    "joined": ("joined", ""),
}
