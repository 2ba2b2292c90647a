"""Faults of the classifier of grouped bottlenecks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Order, Values

from families.fault import Fault, change_model, change_optimizer
from families.resnext.architecture import GROUPS, LABELS, SMOOTHING, WIDTHS, Model


def _order_rows(width: int) -> np.ndarray:
    """Return the rows of a grouped kernel, the first of each group in front."""
    return np.arange(width).reshape(GROUPS, -1).T.reshape(-1)


def _interleave_groups(model: Model) -> Model:
    """Order the rows of all grouped kernels by their place in the group, then by group."""
    interleaved = {
        name: np.ascontiguousarray(values[_order_rows(len(values))])
        for name, values in model.weights.items()
        if name.endswith("grouped.weight")
    }
    return change_model(weights={**model.weights, **interleaved})(model)


FAULTS: Mapping[str, Fault] = {
    "stride_first": Fault(
        "the first convolution of a bottleneck has the stride, as in Caffe, not the grouped one",
        "argument",
        change_model(strided="reduce"),
        lambda *_: [Anywhere("(?i)strid")],
        equivalents=("layer-order", "pooling"),
    ),
    "shortcut_unpooled": Fault(
        "a strided shortcut takes every other pixel, as in the first ResNet, not the mean of four",
        "pooling",
        change_model(is_shortcut_pooled=False),
        equivalents=("missing-step", "resize-mode", "input-source", "argument", "layer-order"),
    ),
    "overhang_counted": Fault(
        "means of pixels in the shortcut count zeros beyond the border of an odd image",
        "pooling",
        change_model(is_overhang_counted=True),
        equivalents=("padding-mode", "argument", "constant-factor", "missing-step"),
    ),
    "max_pool_same": Fault(
        "max pooling is padded at the lower right only: pad_mode same for padding 1",
        "padding-mode",
        change_model(is_max_pool_centered=False),
        lambda *_: [Anywhere("(?i)pad|shift")],
        equivalents=("argument", "pooling", "causal-shift", "row-shift"),
    ),
    "relu_early": Fault(
        "relu of the branch in front of the residual sum, not of the sum",
        "layer-order",
        change_model(is_relu_early=True),
        equivalents=("residual-order", "input-source", "missing-step"),
    ),
    "stem_frozen": Fault(
        "the stem's batch norms are frozen, as a detector's, and use the running statistics",
        "running-statistics",
        change_model(is_stem_frozen=True),
        equivalents=("argument", "norm-kind", "norm-missing"),
    ),
    "rows_interleaved": Fault(
        "rows of grouped kernels converted from a layout with the groups last",
        "heads-permuted",
        _interleave_groups,
        lambda *_: [Order(tuple(_order_rows(WIDTHS[0]).tolist()), 1)],
        equivalents=(
            "split-order",
            "axes-swapped",
            "channel-order",
            "weight-rows",
            "weight-transposed",
            "kernel-axes",
        ),
    ),
    "dilated": Fault(
        "the second block of the middle stage is dilated, as in a backbone for segmentation",
        "dilation",
        change_model(dilations=(1, 2, 1)),
        lambda *_: [Anywhere("dilat")],
        equivalents=("argument",),
    ),
    "mix_swapped": Fault(
        "the share of the first label weighs the second one",
        "loss-target",
        change_model(is_mix_swapped=True),
        equivalents=("input-order", "input-source", "loss-weight", "missing-step"),
    ),
    "aux_weight": Fault(
        "the second head's loss has the weight of GoogLeNet, 0.3, not 0.4",
        "loss-weight",
        change_model(aux_weight=0.3),
        lambda faulty, clean: [Values(faulty.aux_weight, clean.aux_weight)],
        equivalents=("constant-factor", "scale"),
    ),
    "aux_stopped": Fault(
        "no gradient from the second head to the stages, as if it were a probe",
        "gradient-stopped",
        change_model(is_aux_stopped=True),
    ),
    "smoothing_of_others": Fault(
        "what smoothing takes from a label goes to the other ones only, as in the model zoo's loss",
        "label-smoothing",
        change_model(label_smoothing=SMOOTHING * LABELS / (LABELS - 1)),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
        equivalents=("loss-target",),
    ),
    "identity_stopped": Fault(
        "blocks without a convolution in the shortcut add a copy of their input that has no "
        "gradient",
        "gradient-stopped",
        change_model(is_identity_stopped=True),
        equivalents=("skip-missing", "missing-term"),
    ),
    "statistics_stopped": Fault(
        "norms get means and variances of the batch from an all-reduce of several ranks, which has "
        "no gradient",
        "gradient-stopped",
        change_model(are_statistics_stopped=True),
        equivalents=("missing-term",),
    ),
    "colors_reversed": Fault(
        "images are read by OpenCV and not converted: blue is first, not red",
        "channel-order",
        change_model(are_colors_reversed=True),
        equivalents=("batch", "input-order", "scan-direction", "input-source"),
    ),
    "decay_all": Fault(
        "weight decay on norms and biases, too",
        "weight-decay",
        change_optimizer(decay_all=True),
        lambda faulty, _: [Values(faulty.optimizer.weight_decay, 0.0)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("stride_first", "pytorch"),
    ("shortcut_unpooled", "mindspore"),
    ("overhang_counted", "mindspore"),
    ("max_pool_same", "mindspore"),
    ("relu_early", "pytorch"),
    ("stem_frozen", "pytorch"),
    ("rows_interleaved", "mindspore"),
    ("dilated", "pytorch"),
    ("mix_swapped", "pytorch"),
    ("aux_weight", "mindspore"),
    ("aux_stopped", "pytorch"),
    ("decay_all", "mindspore"),
    ("identity_stopped", "mindspore"),
    ("smoothing_of_others", "pytorch"),
    ("statistics_stopped", "mindspore"),
    ("colors_reversed", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "written": ("written", ""),
}
