"""Faults of the separation of speakers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.separation.architecture import FILTERS, SPEAKERS, Model


def _order_filters_first(model: Model) -> Model:
    """Give the channels of the masks the order of a checkpoint in which the filter comes first."""
    order = np.arange(SPEAKERS * FILTERS).reshape(SPEAKERS, FILTERS).T.ravel()
    moved = {name: model.weights[name][order] for name in ("mask.weight", "mask.bias")}
    return change_model(weights={**model.weights, **moved})(model)


FAULTS: Mapping[str, Fault] = {
    "norm_channelwise": Fault(
        "cLN is read as channel-wise, over the channels of one frame, not as cumulative over time",
        "norm-kind",
        change_model(is_norm_channelwise=True),
        equivalents=(
            "reduction-axis",
            "missing-step",
            "missing-term",
            "norm-groups",
            "running-statistics",
            "input-source",
        ),
    ),
    "norm_masked": Fault(
        "masks are multiplied with the normed features, not with what the encoder returned",
        "input-source",
        change_model(is_norm_masked=True),
        equivalents=("skip-source", "layer-order", "missing-step"),
    ),
    "attention_between": Fault(
        "the axes of segments are exchanged: attention runs between segments, not inside of them",
        "axes-swapped",
        change_model(is_attention_between=True),
        equivalents=("reduction-axis", "softmax-axis", "input-source", "input-order"),
    ),
    "overlap_mean": Fault(
        "overlapping segments are averaged, not summed, when they are put together",
        "constant-factor",
        change_model(overlap_factor=0.5),
        lambda faulty, clean: [Ratio(faulty.overlap_factor / clean.overlap_factor)],
        equivalents=("scale", "pooling", "missing-step", "residual-scale"),
    ),
    "padded_around": Fault(
        "the last depthwise convolution is padded on both sides and sees later frames",
        "causal-shift",
        change_model(is_padded_around=True),
        equivalents=("padding-mode", "row-shift", "argument", "missing-step"),
    ),
    "mask_softmax": Fault(
        "masks are a softmax over the speakers, as in the first version of the paper, no sigmoid",
        "activation-kind",
        change_model(mask_activation="softmax"),
        lambda *_: [Anywhere("(?i)softmax|sigmoid|normali[sz]|sum to")],
        equivalents=("missing-step", "softmax-axis", "router-normalisation"),
    ),
    "batch_permuted": Fault(
        "the best assignment is chosen for the mean of the batch, not for each example",
        "loss-reduction",
        change_model(is_batch_permuted=True),
        equivalents=("layer-order", "reduction-axis", "pooling", "input-source", "loss-target"),
    ),
    "segments_overwritten": Fault(
        "the backward pass of the segmentation stores gradients where segments overlap, without "
        "adding them: that of the first of two segments is lost",
        "gradient-stopped",
        change_model(are_segments_overwritten=True),
        equivalents=("missing-term", "gradient-scaled", "missing-step"),
    ),
    "projection_stopped": Fault(
        "the length of the projection on the source is a constant for the gradient",
        "gradient-stopped",
        change_model(is_projection_stopped=True),
        equivalents=("missing-term",),
    ),
    "mixture_gradient": Fault(
        "two ranks, a speaker each, both add the gradient of the sum of the estimates",
        "gradient-scaled",
        change_model(mixture_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.mixture_gradient / clean.mixture_gradient)],
        equivalents=("constant-factor", "scale", "loss-weight"),
    ),
    "mask_rows": Fault(
        "the last convolution comes from a checkpoint whose channels have the filter first",
        "weight-rows",
        _order_filters_first,
        lambda *_: [Anywhere("(?i)order|row|permut")],
        equivalents=("channel-order", "axes-swapped", "split-order", "heads-permuted"),
    ),
    "halves_aligned": Fault(
        "even and odd segments both lose their first hop before they are added: odd ones come a "
        "hop early",
        "row-shift",
        change_model(is_cut_twice=True),
        lambda *_: [
            Anywhere(r"(?i)shift|offset|position|frame|row|slice|begin|start|cut|pad|\b5\b")
        ],
        equivalents=("position-offset", "input-source", "padding-mode", "argument", "causal-shift"),
    ),
    "ratio_natural": Fault(
        "ten times the natural logarithm of the ratio, where the framework has none to base 10",
        "constant-factor",
        change_model(is_ratio_natural=True),
        lambda *_: [
            Anywhere(
                r"(?i)(?<![\w.])(?:2\.30\d*|0?\.43[34]\d*|4\.34\d*|23\.0\d*)(?![\w.]*\w)|\blog|"
                r"\bln\b|natural|\bbase\b"
            )
        ],
        equivalents=("scale", "missing-step", "activation-kind", "loss-weight", "argument"),
    ),
    "sum_gradient_forward": Fault(
        "the cumulative sum's own backward pass accumulates the gradients of the frames before, "
        "not of those behind",
        "scan-direction",
        change_model(is_sum_gradient_forward=True),
        equivalents=(
            "gradient-scaled",
            "missing-step",
            "input-order",
            "input-source",
            "weight-transposed",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("norm_channelwise", "mindspore"),
    ("norm_masked", "mindspore"),
    ("attention_between", "mindspore"),
    ("segments_overwritten", "mindspore"),
    ("mixture_gradient", "mindspore"),
    ("halves_aligned", "mindspore"),
    ("overlap_mean", "pytorch"),
    ("padded_around", "pytorch"),
    ("mask_softmax", "pytorch"),
    ("projection_stopped", "pytorch"),
    ("batch_permuted", "pytorch"),
    ("mask_rows", "pytorch"),
    ("ratio_natural", "mindspore"),
    ("sum_gradient_forward", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("", "written"),
    "products": ("products", ""),
}
