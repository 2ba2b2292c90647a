"""Faults of the distilled mixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.mixer.architecture import BLOCKS, CLASSES, Model, is_gated


def _transpose_gates(model: Model) -> Model:
    """Load the kernels of gates as they are in a checkpoint of Flax, (in, out)."""
    weights = dict(model.weights)
    for n in filter(is_gated, range(BLOCKS)):
        name = f"blocks.{n}.gate.weight"
        weights[name] = np.ascontiguousarray(weights[name].T)
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "gate_eps": Fault(
        "the norm of a gate has the default eps of Keras, 1e-3, not 1e-6",
        "epsilon",
        change_model(gate_eps=1e-3),
        lambda faulty, clean: [Values(faulty.gate_eps, clean.gate_eps)],
        equivalents=("argument",),
    ),
    "gate_plain": Fault(
        "gelu of the gated half only, as in gated linear units, not of both before they are split",
        "missing-step",
        change_model(is_gate_activated=False),
        equivalents=("activation-kind", "layer-order", "input-source"),
    ),
    "by_column": Fault(
        "patches are flattened column by column, while the weights over tokens know them by row",
        "axes-swapped",
        change_model(is_by_column=True),
        equivalents=("input-order", "input-source", "missing-step", "kernel-axes"),
    ),
    "first_dropped": Fault(
        "rates of stochastic depth grow from a fourth of the last one, not from zero",
        "residual-scale",
        change_model(is_first_dropped=True),
        equivalents=("constant-factor", "scale", "dropout", "argument"),
    ),
    "gates_transposed": Fault(
        "square kernels of gates come from Flax and are loaded as they are",
        "weight-transposed",
        _transpose_gates,
        equivalents=("axes-swapped",),
    ),
    "divided_by_all": Fault(
        "the divergence from the teacher is the mean of all terms, the default of kl_div",
        "loss-reduction",
        change_model(is_divided_by_all=True),
        lambda *_: [Ratio(1 / CLASSES)],
        equivalents=("constant-factor", "scale", "loss-weight", "argument"),
    ),
    "box_uncut": Fault(
        "labels are mixed by the area of the box that was drawn, not of its part in the image",
        "loss-target",
        change_model(is_box_cut=False),
        equivalents=(
            "constant-factor",
            "constant-offset",
            "scale",
            "loss-weight",
            "label-smoothing",
            "argument",
        ),
    ),
    "penalty_halved": Fault(
        "the penalty of the gates is that of L2Loss, which has half of the squares",
        "constant-factor",
        change_model(is_penalty_halved=True),
        lambda *_: [Ratio(0.5)],
        equivalents=("scale", "loss-weight"),
    ),
    "student_stopped": Fault(
        "the student's logits are detached for the teacher's loss, where the teacher's should be",
        "gradient-stopped",
        change_model(is_student_stopped=True),
    ),
    "token_gradient": Fault(
        "gradients of the weights over tokens are averaged over two ranks that have a half of the "
        "channels each, not summed",
        "gradient-scaled",
        change_model(token_gradient=0.5),
        lambda faulty, clean: [Ratio(faulty.token_gradient / clean.token_gradient)],
    ),
    "kernel_undecayed": Fault(
        "weight decay only of weights of two dimensions: not of the kernel of patches",
        "weight-decay",
        change_optimizer(are_kernels_decayed=False),
        lambda faulty, clean: [Values(0.0, clean.optimizer.weight_decay)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "rate_unscaled": Fault(
        "the learning rate is that of half the batch size, to which it is proportional",
        "learning-rate",
        change_optimizer(learning_rate=1e-3),
        lambda faulty, clean: [
            Ratio(faulty.optimizer.learning_rate / clean.optimizer.learning_rate)
        ],
        optimizer=True,
    ),
    "gate_gradient": Fault(
        "the backward pass of a fused gate exchanges its factors: the gradient of each is "
        "multiplied by itself, not by the other one",
        "gradient-scaled",
        change_model(is_gate_gradient_exchanged=True),
        equivalents=("input-order", "input-source", "missing-step"),
    ),
    "teacher_unshuffled": Fault(
        "the loader shuffles images and labels, but not the teacher's logits, which it has saved",
        "batch",
        change_model(is_teacher_unshuffled=True),
        equivalents=("loss-target", "row-shift", "input-order", "input-source"),
    ),
    "halves_exchanged": Fault(
        "halves of the channels are exchanged: the first one is normed, mixed over the tokens and "
        "gates the second one",
        "split-order",
        change_model(are_halves_exchanged=True),
        equivalents=("gate-up-swapped", "input-order", "input-source", "channel-order"),
    ),
    "keep_gradient": Fault(
        "the backward pass of a fused stochastic depth hides dropped branches, but does not divide "
        "the others by the probability that they are kept",
        "gradient-scaled",
        change_model(is_keep_derived=False),
        lambda *_: [
            Anywhere(r"(?<![\d.])(?:0\.(?:[789](?!\d)|[789]0|[678]9)\d*|1\.(?:1|2[45]|4[23])\d*)")
        ],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("gate_eps", "pytorch"),
    ("gate_plain", "pytorch"),
    ("by_column", "mindspore"),
    ("first_dropped", "pytorch"),
    ("gates_transposed", "mindspore"),
    ("divided_by_all", "pytorch"),
    ("box_uncut", "pytorch"),
    ("penalty_halved", "mindspore"),
    ("student_stopped", "mindspore"),
    ("token_gradient", "mindspore"),
    ("kernel_undecayed", "mindspore"),
    ("rate_unscaled", "pytorch"),
    ("gate_gradient", "mindspore"),
    ("teacher_unshuffled", "pytorch"),
    ("halves_exchanged", "mindspore"),
    ("keep_gradient", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "einsum": ("", "einsum"),
    "conv": ("conv", ""),
    "patches": ("conv", "patches"),
}
