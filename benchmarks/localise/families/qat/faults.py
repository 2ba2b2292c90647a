"""Faults of fake quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Shift, Values, Words

from families.fault import Fault, change_model, change_weight
from families.qat.architecture import BATCH, Model

#: Order in which AWQ (https://arxiv.org/abs/2306.00978, its code) packs eight numbers of 4 bits.
PACKED_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _take_first_block(model: Model) -> Model:
    """Give the last block the first layer of the first one."""
    weight = model.weights["blocks.0.up.weight"]
    return replace(model, weights={**model.weights, "blocks.1.up.weight": weight})


def _decay_gradients(model: Model) -> Model:
    """Add the decay of the weights to their gradients."""
    return replace(model, optimizer=replace(model.optimizer, kind="adam"))


def _keep_packed_order(weight: np.ndarray) -> np.ndarray:
    """Order each eight rows as AWQ packs them into one integer."""
    return weight.reshape(-1, len(PACKED_ORDER), weight.shape[1])[:, PACKED_ORDER].reshape(
        weight.shape
    )


FAULTS: Mapping[str, Fault] = {
    "zero_point": Fault(
        "the zero point of an activation is off by one",
        "zero-point",
        change_model(zero_point_shift=1),
        lambda faulty, clean: [Shift(faulty.zero_point_shift)],
    ),
    "half_range": Fault(
        "an activation has 128 levels for 256",
        "quantization-range",
        change_model(n_levels=128),
        lambda faulty, clean: [Words("127|128|7 bits", "255|256|8 bits")],
    ),
    "scale": Fault(
        "the scale of an activation is 1 % too large",
        "quantization-scale",
        change_model(scale_factor=1.01),
        lambda faulty, clean: [Ratio(faulty.scale_factor)],
    ),
    "activation_float": Fault(
        "an activation is not quantized",
        "quantization-missing",
        change_model(is_activation_quantized=False),
        lambda faulty, clean: [Anywhere("quantiz")],
    ),
    "scale_per_tensor": Fault(
        "one scale for a whole weight, not one per row",
        "quantization-scale",
        change_model(is_scale_per_row=False),
        lambda faulty, clean: [Words("one scale|per tensor", "per row|per channel")],
    ),
    "scale_axis": Fault(
        "the scales of the rows of a square weight used for its columns",
        "quantization-axis",
        change_model(scale_axis=1),
        lambda faulty, clean: [Anywhere("axis|columns")],
    ),
    "floor": Fault(
        "a weight rounded down, not to the nearest step",
        "rounding-mode",
        change_model(weight_rounding="floor"),
        lambda faulty, clean: [Anywhere("floor|down")],
    ),
    "gradient_stopped": Fault(
        "the rounding of an activation stops its gradient",
        "gradient-stopped",
        change_model(passes_gradient=False),
    ),
    "clipped_gradient": Fault(
        "the gradient passes where an activation was clipped",
        "straight-through",
        change_model(passes_clipped=True),
        lambda faulty, clean: [Anywhere("clip")],
    ),
    "bias_missing": Fault(
        "a quantized layer without its bias",
        "bias-missing",
        change_model(has_bias=False),
        lambda faulty, clean: [Anywhere("bias")],
    ),
    "weight_transposed": Fault(
        "a square weight transposed on load",
        "weight-transposed",
        change_weight("blocks.0.up.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed")],
    ),
    "skip_missing": Fault(
        "a block without its skip connection",
        "skip-missing",
        change_model(has_skip=False),
    ),
    "label_smoothing": Fault(
        "labels are smoothed",
        "label-smoothing",
        change_model(label_smoothing=0.1),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
    ),
    "gelu_for_relu": Fault(
        "gelu for relu in the last block",
        "activation-kind",
        change_model(activation="gelu"),
        lambda *_: [Words("gelu", "relu")],
    ),
    "branch_scale": Fault(
        "the last block counts half in its residual sum",
        "residual-scale",
        change_model(branch_scale=0.5),
        lambda faulty, clean: [Ratio(faulty.branch_scale / clean.branch_scale)],
        equivalents=("constant-factor", "scale"),
    ),
    "weight_gradient": Fault(
        "the gradient of a quantized weight is a tenth, as of a layer that learns more slowly",
        "gradient-scaled",
        change_model(weight_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.weight_gradient / clean.weight_gradient)],
    ),
    "head_half": Fault(
        "the head in float16",
        "low-precision",
        change_model(is_head_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "block_weight": Fault(
        "the last block has the first weight of the block before",
        "weight-swapped",
        _take_first_block,
        lambda *_: [Anywhere(r"\bup\b")],
    ),
    "skip_quantized": Fault(
        "the last block adds its input as it was quantized, not as it was",
        "residual-order",
        change_model(is_skip_quantized=True),
        equivalents=("input-source", "skip-source", "quantization-missing", "missing-step"),
    ),
    "decayed_gradients": Fault(
        "Adam, which adds the weight decay to the gradients, not AdamW",
        "update-rule",
        _decay_gradients,
        lambda *_: [Anywhere("gradient|[Aa]dam|decay")],
        row="32",
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "loss_sum": Fault(
        "the loss is summed over the batch, not its mean",
        "loss-reduction",
        change_model(loss_reduction="sum"),
        lambda *_: [Ratio(BATCH)],
        equivalents=("constant-factor", "scale", "missing-step", "pooling"),
    ),
    "bias_doubled": Fault(
        "a quantized layer adds its bias twice: the product has it already",
        "bias-doubled",
        change_model(is_bias_doubled=True),
        lambda *_: [Anywhere("bias")],
        equivalents=("weight-scaled", "constant-factor", "missing-term", "missing-step"),
    ),
    "sum_rectified": Fault(
        "the last block's sum goes through relu: the fused add_relu of a framework, not its add",
        "missing-step",
        change_model(is_sum_rectified=True),
        lambda *_: [Anywhere("(?i)relu|rectif|max|clamp|negative")],
        equivalents=("activation-kind", "clamp", "layer-order"),
    ),
    "packed_rows": Fault(
        "a weight from a checkpoint of AWQ keeps the order in which eight rows are packed",
        "weight-rows",
        change_weight("blocks.1.up.weight", _keep_packed_order),
        lambda *_: [Anywhere("(?i)order|row|permut")],
        equivalents=("row-shift", "channel-order", "split-order", "heads-permuted", "axes-swapped"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("zero_point", "mindspore"),
    ("half_range", "pytorch"),
    ("half_range", "mindspore"),
    ("scale", "mindspore"),
    ("scale", "pytorch"),
    ("activation_float", "pytorch"),
    ("scale_per_tensor", "mindspore"),
    ("scale_axis", "mindspore"),
    ("floor", "mindspore"),
    ("gradient_stopped", "mindspore"),
    ("clipped_gradient", "pytorch"),
    ("bias_missing", "pytorch"),
    ("weight_transposed", "mindspore"),
    ("skip_missing", "pytorch"),
    ("label_smoothing", "mindspore"),
    ("gelu_for_relu", "mindspore"),
    ("branch_scale", "pytorch"),
    ("weight_gradient", "mindspore"),
    ("head_half", "mindspore"),
    ("block_weight", "pytorch"),
    ("skip_quantized", "pytorch"),
    ("decayed_gradients", "mindspore"),
    ("loss_sum", "mindspore"),
    ("bias_doubled", "pytorch"),
    ("sum_rectified", "mindspore"),
    ("packed_rows", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "function": ("", "function"),
    "reciprocal": ("reciprocal", ""),
    "detached": ("", "detached"),
}
