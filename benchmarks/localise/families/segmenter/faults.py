"""Faults of the segmenter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.segmenter.architecture import BLOCKS, GRID, WIDTH, Model

#: Batch norms of one size that a table of names exchanged.
_SWAPPED_NORMS = ("blocks.2.second.depthwise.norm", "blocks.2.second.pointwise.norm")


def _swap_norms(model: Model) -> Model:
    """Give two batch norms each other's weight and bias."""
    weights = dict(model.weights)
    first, second = _SWAPPED_NORMS
    for kind in ("weight", "bias"):
        weights[f"{first}.{kind}"] = model.weights[f"{second}.{kind}"]
        weights[f"{second}.{kind}"] = model.weights[f"{first}.{kind}"]
    return replace(model, weights=weights)


def _clear_last_norms(model: Model) -> Model:
    """Set the weights of the last batch norm of each block's branch to zero."""
    weights = dict(model.weights)
    for n in range(len(BLOCKS)):
        name = f"blocks.{n}.second.pointwise.norm.weight"
        weights[name] = np.zeros_like(weights[name])
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "channel_constants": Fault(
        "means and deviations of the channels are those of blue, green and red",
        "constant-factor",
        change_model(are_constants_reversed=True),
        equivalents=("channel-order", "constant-offset", "scale", "argument"),
    ),
    "norms_swapped": Fault(
        "the batch norms behind a depthwise and a pointwise convolution swapped on load",
        "weight-swapped",
        _swap_norms,
        lambda *_: [Anywhere("norm|parameter|weight|bn_")],
    ),
    "stem_padding": Fault(
        "the strided stem is padded at the lower right only: pad_mode same for padding 1",
        "padding-mode",
        change_model(stem_padding="end"),
        lambda *_: [Anywhere("(?i)pad")],
        equivalents=("argument",),
    ),
    "hard_gates": Fault(
        "hard sigmoid for sigmoid in squeeze and excitation, as MobileNetV3 has it",
        "activation-kind",
        change_model(gate_activation="hardsigmoid"),
        lambda *_: [Anywhere("(?i)sigmoid")],
    ),
    "rates": Fault(
        "dilations of the pyramid are those of an encoder with twice the stride",
        "dilation",
        change_model(rates=(1, 2)),
        lambda *_: [Anywhere("dilat")],
    ),
    "reduction_norm": Fault(
        "no layer norm behind the convolution that reduces keys and values",
        "norm-missing",
        change_model(has_reduction_norm=False),
        lambda *_: [Anywhere("norm")],
        equivalents=("missing-step",),
    ),
    "low_level_early": Fault(
        "the decoder reads low-level features before their relu",
        "skip-source",
        change_model(is_low_level_rectified=False),
        equivalents=("input-source", "missing-step", "activation-kind"),
    ),
    "corners": Fault(
        "the decoder aligns corners when it upsamples",
        "align-corners",
        change_model(are_corners_aligned=True),
        lambda *_: [Anywhere("corner")],
        equivalents=("resize-mode",),
    ),
    "loss_divisor": Fault(
        "weighted cross entropy divided by the number of pixels, not by the sum of their weights",
        "loss-reduction",
        change_model(loss_divisor="pixels"),
        lambda *_: [Anywhere(r"mean|sum|weigh|divi|reduc|times|\d")],
        equivalents=("loss-weight", "constant-factor", "scale", "input-source"),
    ),
    "dice_unmasked": Fault(
        "probabilities of ignored pixels count in the Dice loss",
        "mask-missing",
        change_model(is_dice_masked=False),
        equivalents=("ignore-index", "missing-step", "missing-term", "input-source"),
    ),
    "auxiliary_stopped": Fault(
        "no gradient from the second head to the encoder",
        "gradient-stopped",
        change_model(is_auxiliary_stopped=True),
    ),
    "pooling_gradient": Fault(
        "the backward pass of the image pooling does not divide by the number of cells",
        "gradient-scaled",
        change_model(pooling_gradient=float(GRID**2)),
        lambda faulty, clean: [Ratio(faulty.pooling_gradient / clean.pooling_gradient)],
    ),
    "group_rate": Fault(
        "biases and norms have the learning rate of the kernels, not twice as much",
        "learning-rate",
        change_optimizer(group_rate=1.0),
        lambda faulty, clean: [Ratio(faulty.optimizer.group_rate / clean.optimizer.group_rate)],
        optimizer=True,
    ),
    "group_clipped": Fault(
        "only the kernels' group of gradients is clipped",
        "clip",
        change_optimizer(group_clipped=False),
        lambda *_: [Anywhere(r"clip|times|factor|\b1\.9|\b0\.52")],
        optimizer=True,
        equivalents=("gradient-scaled", "learning-rate"),
    ),
    "batch_eps": Fault(
        "batch norms have the eps 1e-3 of TensorFlow's DeepLab",
        "epsilon",
        change_model(batch_eps=1e-3),
        lambda faulty, clean: [Values(faulty.batch_eps, clean.batch_eps)],
        equivalents=("argument", "constant-offset"),
    ),
    "pooling_first": Fault(
        "the pyramid is joined with the image pooling first, as in TensorFlow's DeepLab",
        "input-order",
        change_model(is_pooling_first=True),
        equivalents=("input-source", "channel-order", "row-shift"),
    ),
    "nearest_logits": Fault(
        "logits of both heads are upsampled by the nearest cell, the default of the operator",
        "resize-mode",
        change_model(upsampling="nearest"),
        lambda *_: [Anywhere("nearest|linear")],
        equivalents=("align-corners", "argument"),
    ),
    "image_untransposed": Fault(
        "tokens are reshaped to the image of the reducing convolution without being transposed",
        "axes-swapped",
        change_model(is_attention_image_transposed=False),
        equivalents=("missing-step", "input-source"),
    ),
    "shortcut_pooled": Fault(
        "a strided shortcut has the mean of four cells, as ResNet-D, not the first of them",
        "pooling",
        change_model(is_shortcut_pooled=True),
        equivalents=("resize-mode", "missing-step", "input-source", "argument", "layer-order"),
    ),
    "gate_late": Fault(
        "squeeze and excitation of the last block is behind the sum with the shortcut",
        "layer-order",
        change_model(is_gate_late=True),
        equivalents=("input-source", "residual-order", "skip-source"),
    ),
    "auxiliary_weight": Fault(
        "the loss of the second head counts as much as that of the first one, not 0.4 of it",
        "loss-weight",
        change_model(auxiliary_weight=1.0),
        lambda faulty, clean: [Ratio(faulty.auxiliary_weight / clean.auxiliary_weight)],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "decay_all": Fault(
        "biases and norms decay, too: the groups were built without the second decay",
        "weight-decay",
        change_optimizer(decay_all=True),
        optimizer=True,
        equivalents=("update-rule", "argument"),
    ),
    "dice_of_images": Fault(
        "Dice is computed image by image, and its mean is over images too",
        "reduction-axis",
        change_model(is_dice_of_images=True),
        equivalents=("loss-reduction", "pooling"),
    ),
    "gradient_corners": Fault(
        "the backward pass of the decoder's upsampling has aligned corners, its forward pass not",
        "align-corners",
        change_model(are_gradient_corners_aligned=True),
        lambda *_: [Anywhere("(?i)corner|resiz|upsampl|interpol|linear")],
        equivalents=("resize-mode", "argument"),
    ),
    "first_class_ignored": Fault(
        "labels are read as those of ADE20K, reduced by one with their first class ignored",
        "label-shift",
        change_model(is_first_class_ignored=True),
        lambda *_: [
            Anywhere(
                r"(?i)shift|offset|\badd|subtract|constant|label|target|batch|input|data|\b1\b"
            )
        ],
        equivalents=(
            "batch",
            "loss-target",
            "constant-offset",
            "row-shift",
            "ignore-index",
            "missing-step",
            "input-source",
        ),
    ),
    "keys_read_by_head": Fault(
        "joined rows of keys and values are read head by head, as Megatron stores them: a head's "
        "keys, then its values",
        "split-order",
        change_model(are_keys_read_by_head=True),
        equivalents=(
            "heads-permuted",
            "axes-swapped",
            "weight-rows",
            "channel-order",
            "input-order",
            "input-source",
        ),
    ),
    "last_norms_initial": Fault(
        "weights are initialized behind the loading of the checkpoint, not before it: the last "
        "norm of each residual block begins at zero",
        "zeroed",
        _clear_last_norms,
        lambda *_: [Anywhere("(?i)filled with 0|zero")],
        equivalents=("missing-term",),
    ),
    "score_divisor": Fault(
        "scores are divided by the root of all channels, not of those of a head",
        "scale",
        change_model(score_divisor=WIDTH),
        lambda faulty, clean: [Ratio((faulty.score_divisor / clean.score_divisor) ** -0.5)],
        equivalents=("constant-factor", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("channel_constants", "mindspore"),
    ("norms_swapped", "pytorch"),
    ("stem_padding", "mindspore"),
    ("hard_gates", "pytorch"),
    ("rates", "mindspore"),
    ("reduction_norm", "pytorch"),
    ("low_level_early", "mindspore"),
    ("corners", "pytorch"),
    ("loss_divisor", "mindspore"),
    ("dice_unmasked", "pytorch"),
    ("auxiliary_stopped", "pytorch"),
    ("pooling_gradient", "mindspore"),
    ("group_rate", "pytorch"),
    ("group_clipped", "mindspore"),
    ("batch_eps", "pytorch"),
    ("pooling_first", "mindspore"),
    ("nearest_logits", "mindspore"),
    ("image_untransposed", "pytorch"),
    ("shortcut_pooled", "mindspore"),
    ("gate_late", "pytorch"),
    ("auxiliary_weight", "pytorch"),
    ("decay_all", "mindspore"),
    ("dice_of_images", "mindspore"),
    ("gradient_corners", "pytorch"),
    ("first_class_ignored", "mindspore"),
    ("keys_read_by_head", "pytorch"),
    ("last_norms_initial", "mindspore"),
    ("score_divisor", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "written": ("written", ""),
}
