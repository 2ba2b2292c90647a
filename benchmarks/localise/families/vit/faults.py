"""Faults and cases of the vision transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Order, Ratio, Shift, Values, Words

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.vit.architecture import Model

HEAD_ORDER = (0, 2, 1, 3)  #: of two ranks whose heads alternate


def _permute_heads(model: Model) -> Model:
    """Join the queries of two ranks head by head."""
    weights = dict(model.weights)
    for kind in ("weight", "bias"):
        name = f"layers.1.attention.q.{kind}"
        by_head = weights[name].reshape(model.heads, model.head_dim, -1)
        weights[name] = by_head[list(HEAD_ORDER)].reshape(weights[name].shape)
    return replace(model, weights=weights)


def _transpose_grid(table: np.ndarray) -> np.ndarray:
    """Exchange rows and columns of the patches' positions; the class token's stays in front."""
    _, n_tokens, hidden = table.shape
    edge = math.isqrt(n_tokens - 1)
    grid = table[:, 1:].reshape(edge, edge, hidden).swapaxes(0, 1)
    return np.concatenate([table[:, :1], grid.reshape(1, -1, hidden)], axis=1)


FAULTS: Mapping[str, Fault] = {
    "channel_order": Fault(
        "the patch kernel expects blue before red",
        "channel-order",
        change_weight("patch.weight", lambda kernel: kernel[:, ::-1]),
    ),
    "position_shift": Fault(
        "positions moved by one, the class token's comes last",
        "position-offset",
        change_weight("positions.weight", lambda table: np.roll(table, 1, axis=1)),
        lambda *_: [Shift(-1)],
    ),
    "norm_eps": Fault(
        "a layer norm has eps 1e-3 for 1e-6",
        "epsilon",
        change_model(norm_eps=1e-3),
        lambda faulty, clean: [Values(faulty.norm_eps, clean.norm_eps)],
    ),
    "attention_scale": Fault(
        "scores divided by the head's size, not its root",
        "scale",
        change_model(attention_scale=8**-0.5),
        lambda faulty, clean: [Ratio(faulty.attention_scale / clean.attention_scale)],
    ),
    "softmax_half": Fault(
        "softmax in float16",
        "low-precision",
        change_model(is_softmax_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "value_bias": Fault(
        "the bias of the values is left out",
        "bias-missing",
        change_model(has_value_bias=False),
        lambda *_: [Anywhere("bias")],
    ),
    "gelu_tanh": Fault(
        "the tanh form of gelu for the exact one",
        "gelu-variant",
        change_model(activation="gelu_tanh"),
        lambda *_: [Words(r"gelu \(tanh\)", r"gelu \(erf\)")],
    ),
    "residual_order": Fault(
        "residual taken after the norm",
        "residual-order",
        change_model(residual="after"),
    ),
    "attention_detached": Fault(
        "no gradient through the attention",
        "gradient-stopped",
        change_model(is_attention_detached=True),
    ),
    "pooling": Fault(
        "the head reads the mean of all tokens, not the class token",
        "pooling",
        change_model(pooling="mean"),
    ),
    "label_smoothing": Fault(
        "labels are not smoothed",
        "label-smoothing",
        change_model(label_smoothing=0.0),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
    ),
    "softmax_axis": Fault(
        "softmax over the queries",
        "softmax-axis",
        change_model(softmax_axis=-2),
        lambda faulty, clean: [Values(faulty.softmax_axis, clean.softmax_axis)],
    ),
    "dropout": Fault(
        "dropout of the embedded patches left on",
        "dropout",
        change_model(dropout=0.1),
        lambda faulty, clean: [Words(rf"p = {faulty.dropout:g}\b")],
    ),
    "norm_missing": Fault(
        "no norm in front of the head",
        "norm-missing",
        change_model(has_final_norm=False),
        lambda *_: [Anywhere("norm")],
    ),
    "heads_permuted": Fault(
        "the heads of the queries in another order",
        "heads-permuted",
        _permute_heads,
        lambda faulty, clean: [Order(HEAD_ORDER, clean.head_dim)],
        row="43",
    ),
    "branch_scale": Fault(
        "the attention divided by 0.9, as by a drop path that drops nothing",
        "residual-scale",
        change_model(branch_scale=1 / 0.9),
        lambda faulty, clean: [Ratio(faulty.branch_scale / clean.branch_scale)],
        equivalents=("constant-factor", "scale"),
    ),
    "output_bias": Fault(
        "the bias of an attention's output is added by every rank",
        "bias-doubled",
        change_model(n_output_biases=2),
        lambda *_: [Anywhere("bias")],
    ),
    "patch_order": Fault(
        "patches column by column, not row by row",
        "axes-swapped",
        change_model(are_patches_by_column=True),
    ),
    "class_position": Fault(
        "positions are added to the patches only, not to the class token",
        "missing-term",
        change_model(has_class_position=False),
        equivalents=("missing-step", "weight-rows"),
    ),
    "kernel_axes": Fault(
        "height and width of the patch kernel exchanged on load from a channels-last checkpoint",
        "kernel-axes",
        change_weight("patch.weight", lambda kernel: kernel.swapaxes(2, 3)),
        lambda *_: [Anywhere("axes|transposed")],
        equivalents=("weight-transposed", "axes-swapped"),
    ),
    "embedding_gradient": Fault(
        "the gradient of the embedded tokens is shrunk to a tenth, as for large language models",
        "gradient-scaled",
        change_model(embedding_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.embedding_gradient / clean.embedding_gradient)],
        equivalents=("gradient-stopped",),
    ),
    "split_by_head": Fault(
        "the fused projection is read as q, k and v of one head after the other, as in Megatron",
        "split-order",
        change_model(is_split_by_head=True),
        equivalents=("heads-permuted", "axes-swapped", "input-order", "weight-rows"),
    ),
    "norm_shared": Fault(
        "the norm of the attention is called before the mlp, too, by its name copied",
        "weight-swapped",
        change_model(is_norm_shared=True),
        lambda *_: [Anywhere("(?i)norm")],
        equivalents=("input-source",),
    ),
    "quick_gelu": Fault(
        "x * sigmoid(1.702 x), the gelu of CLIP's vision transformer, for the exact one",
        "activation-kind",
        change_model(activation="quick_gelu"),
        lambda *_: [Anywhere("(?i)gelu|sigmoid|silu|swish|1.702")],
        equivalents=("gelu-variant",),
    ),
    "unclipped": Fault(
        "gradients are not clipped by their joint norm",
        "clip",
        change_optimizer(clip=0.0),
        optimizer=True,
        equivalents=("gradient-norm", "gradient-scaled", "constant-factor", "missing-step"),
    ),
    "loss_summed": Fault(
        "the losses of the images are summed, not averaged",
        "loss-reduction",
        change_model(loss_reduction="sum"),
        lambda faulty, clean: [Ratio(clean.batch_size)],
        equivalents=("constant-factor", "scale", "pooling", "loss-weight"),
    ),
    "output_transposed": Fault(
        "the square weight of the first attention's output is not transposed on load from Flax",
        "weight-transposed",
        change_weight("layers.0.attention.o.weight", lambda matrix: matrix.T),
        lambda *_: [Anywhere("transpos|axes")],
        equivalents=("axes-swapped",),
    ),
    "position_grid": Fault(
        "rows and columns of the grid of positions are exchanged, by the code that resizes it",
        "weight-rows",
        change_weight("positions.weight", _transpose_grid),
        lambda *_: [Anywhere("(?i)row|order|transpos|axes|grid")],
        equivalents=("axes-swapped", "weight-transposed", "position-offset", "row-shift"),
    ),
    "norm_late": Fault(
        "the last layer has its norms behind the residual sums, the framework's default",
        "layer-order",
        change_model(is_norm_late=True),
        lambda *_: [Anywhere("(?i)norm|residual|sum|order")],
        equivalents=("residual-order", "input-source", "skip-source", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("channel_order", "mindspore"),
    ("position_shift", "pytorch"),
    ("norm_eps", "mindspore"),
    ("attention_scale", "mindspore"),
    ("softmax_half", "pytorch"),
    ("value_bias", "mindspore"),
    ("gelu_tanh", "pytorch"),
    ("residual_order", "mindspore"),
    ("attention_detached", "pytorch"),
    ("pooling", "mindspore"),
    ("label_smoothing", "pytorch"),
    ("softmax_axis", "pytorch"),
    ("dropout", "mindspore"),
    ("norm_missing", "pytorch"),
    ("heads_permuted", "mindspore"),
    ("branch_scale", "pytorch"),
    ("output_bias", "mindspore"),
    ("patch_order", "mindspore"),
    ("class_position", "pytorch"),
    ("kernel_axes", "mindspore"),
    ("embedding_gradient", "pytorch"),
    ("split_by_head", "pytorch"),
    ("norm_shared", "mindspore"),
    ("quick_gelu", "mindspore"),
    ("unclipped", "pytorch"),
    ("loss_summed", "mindspore"),
    ("output_transposed", "pytorch"),
    ("position_grid", "mindspore"),
    ("norm_late", "pytorch"),
)

#: Separate projections under other names in PyTorch; norm, softmax and loss written out in
#: MindSpore, attention and patches in PyTorch.
VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "decomposition": ("decomposition", "decomposition"),
    "unfolded": ("unfolded", ""),
    "einsum": ("", "einsum"),
}
