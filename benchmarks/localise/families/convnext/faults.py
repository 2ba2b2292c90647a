"""Faults and cases of the image classifier of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.convnext.architecture import (
    BATCH,
    CLASSES,
    DEPTHS,
    LAST_STAGE,
    SMOOTHING,
    Model,
)
from families.fault import Fault, change_model, change_optimizer

HEAD_SCALE = 0.001
INITIAL_SCALE = 1e-6
LAST = f"stages.{LAST_STAGE}.{DEPTHS[LAST_STAGE] - 1}"


def _load_norm_as_scale(model: Model) -> Model:
    """Give the last layer scale the weight of its block's norm: both are called gamma."""
    weights = {**model.weights, f"{LAST}.scale": model.weights[f"{LAST}.norm.weight"]}
    return change_model(weights=weights)(model)


def _divide_decay_by_rate(model: Model) -> Model:
    """Make the decay of a step what it is without the learning rate as a factor."""
    decay = model.optimizer.weight_decay / model.optimizer.learning_rate
    return change_optimizer(weight_decay=decay)(model)


def _scale_head(model: Model) -> Model:
    """Multiply weight and bias of the head, as the constructor of the released code does."""
    scale = np.float32(HEAD_SCALE)
    scaled = {name: scale * model.weights[name] for name in ("head.weight", "head.bias")}
    return change_model(weights={**model.weights, **scaled})(model)


def _skip_scales(model: Model) -> Model:
    """Leave all layer scales at their initial value."""
    initial_scales = {
        name: np.full_like(values, INITIAL_SCALE)
        for name, values in model.weights.items()
        if name.endswith(".scale")
    }
    return change_model(weights={**model.weights, **initial_scales})(model)


FAULTS: Mapping[str, Fault] = {
    "inception_pixels": Fault(
        "pixels have mean and deviation 0.5, as Inception's, not ImageNet's",
        "constant-factor",
        change_model(pixel_mean=(0.5,) * 3, pixel_deviation=(0.5,) * 3),
        equivalents=("batch", "argument", "constant-offset", "scale"),
    ),
    "norm_grouped": Fault(
        "a group norm of one group, which is over pixels too, before the last 2x2 convolution",
        "norm-kind",
        change_model(is_last_down_grouped=True),
        lambda *_: [Anywhere("(?i)norm|mean|variance")],
        equivalents=("norm-groups", "reduction-axis"),
    ),
    "depthwise_bias": Fault(
        "a depthwise convolution without bias, the default of MindSpore's",
        "bias-missing",
        change_model(has_depthwise_bias=False),
        lambda *_: [Anywhere("bias")],
        equivalents=("missing-term", "missing-step"),
    ),
    "residual_filtered": Fault(
        "the residual is taken behind the depthwise convolution, not before it",
        "residual-order",
        change_model(is_residual_filtered=True),
        equivalents=("skip-source", "input-source"),
    ),
    "mlp_float16": Fault(
        "the linear layers of a block run in float16, by autocast",
        "low-precision",
        change_model(mlp_dtype="float16"),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "scale_from_norm": Fault(
        "a layer scale was loaded from the weight of the norm, which is called gamma, too",
        "weight-swapped",
        _load_norm_as_scale,
        lambda *_: [Anywhere("parameter|weight|gamma|scale|norm")],
        equivalents=("input-source",),
    ),
    "pooled_last": Fault(
        "the head's norm is applied to each pixel, before the mean, as in Swin",
        "layer-order",
        change_model(is_pooled_last=True),
        equivalents=("input-source",),
    ),
    "wrong_smoothed": Fault(
        "the smoothing is shared by the wrong classes only, as the model zoo's loss has it",
        "label-smoothing",
        change_model(smoothed_classes="wrong"),
        lambda *_: [Values(SMOOTHING * CLASSES / (CLASSES - 1), SMOOTHING)],
        equivalents=("argument", "loss-target"),
    ),
    "stem_stopped": Fault(
        "no gradient from the first stage to the patches, a trick of self-supervised training",
        "gradient-stopped",
        change_model(is_stem_stopped=True),
        equivalents=("update-missing",),
    ),
    "scale_averaged": Fault(
        "the gradient of a layer scale is averaged over the images, not summed",
        "gradient-scaled",
        change_model(scale_gradient=1 / BATCH),
        lambda faulty, clean: [Ratio(faulty.scale_gradient / clean.scale_gradient)],
    ),
    "scale_decayed": Fault(
        "layer scales decay, because they have three axes and the rule spares what has one",
        "weight-decay",
        change_model(is_scale_spatial=True),
        lambda faulty, clean: [Values(clean.optimizer.weight_decay, 0.0)],
        optimizer=True,
    ),
    "uncorrected": Fault(
        "nn.AdamWeightDecay for AdamW: its moments are not corrected for their start at zero",
        "bias-correction",
        change_optimizer(kind="adam_weight_decay"),
        row="32",
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "gelu_default": Fault(
        "the gelu of a block is the tanh form, the default of nn.GELU in MindSpore",
        "gelu-variant",
        change_model(gelu="tanh"),
        lambda *_: [Words("tanh", "erf|exact|none")],
        equivalents=("activation-kind", "argument"),
    ),
    "decay_plain": Fault(
        "weight decay is not multiplied by the learning rate, as AdamW's paper writes it",
        "weight-decay",
        _divide_decay_by_rate,
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "head_scaled": Fault(
        "the head is multiplied by its initial scale after a checkpoint is loaded, not before",
        "weight-scaled",
        _scale_head,
        lambda *_: [Ratio(HEAD_SCALE)],
        equivalents=("constant-factor", "scale"),
    ),
    "path_kept": Fault(
        "the last block's path is divided by its probability to be kept, though none is dropped",
        "residual-scale",
        change_model(path_scale=1 / 0.8),
        lambda faulty, clean: [Ratio(faulty.path_scale / clean.path_scale)],
        equivalents=("constant-factor", "scale", "dropout", "missing-step"),
    ),
    "pixels_exchanged": Fault(
        "blocks move channels back by exchanging two axes: rows of pixels become columns",
        "axes-swapped",
        change_model(are_pixels_exchanged=True),
        equivalents=("missing-step", "input-order", "weight-transposed"),
    ),
    "logits_normalized": Fault(
        "the classifier ends with a softmax, and the loss, which wants logits, has another one",
        "missing-step",
        change_model(are_logits_normalized=True),
        lambda *_: [Anywhere("(?i)softmax")],
        equivalents=("activation-kind", "loss-kind", "input-source"),
    ),
    "scales_initial": Fault(
        "layer scales are not loaded, because the loader takes what is called gamma for the weight "
        "of a norm: all are 1e-6",
        "zeroed",
        _skip_scales,
        lambda *_: [
            Anywhere(
                r"(?i)fill|initial|constant|equal|zero|(?<![\w.])(?:1(?:\.0+)?|9\.99\d*)e-0?[67]"
            )
        ],
        equivalents=("affine-missing",),
    ),
    "mirrored": Fault(
        "the random flip of training is left on in the pipeline of one side: some images are "
        "mirrored",
        "batch",
        change_model(mirrored=(0, 3)),
        equivalents=("scan-direction", "row-shift", "input-order", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("inception_pixels", "pytorch"),
    ("norm_grouped", "pytorch"),
    ("depthwise_bias", "mindspore"),
    ("residual_filtered", "mindspore"),
    ("mlp_float16", "pytorch"),
    ("scale_from_norm", "mindspore"),
    ("pooled_last", "pytorch"),
    ("wrong_smoothed", "mindspore"),
    ("stem_stopped", "mindspore"),
    ("scale_averaged", "pytorch"),
    ("scale_decayed", "pytorch"),
    ("uncorrected", "mindspore"),
    ("gelu_default", "mindspore"),
    ("decay_plain", "pytorch"),
    ("head_scaled", "mindspore"),
    ("path_kept", "pytorch"),
    ("pixels_exchanged", "mindspore"),
    ("logits_normalized", "pytorch"),
    ("scales_initial", "mindspore"),
    ("mirrored", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "conv_mlp": ("", "conv_mlp"),
    "unfolded": ("unfolded", ""),
}
