"""Faults of the densely connected convolutions and of their head along the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values

from families.densenet.architecture import DECAY, Model
from families.fault import Fault, change_model, change_optimizer


def _flip_kernels(model: Model) -> Model:
    """Reverse the rows of all dilated kernels."""
    flipped = {
        name: np.ascontiguousarray(values[..., ::-1])
        for name, values in model.weights.items()
        if name.endswith("dilated.direction")
    }
    return replace(model, weights={**model.weights, **flipped})


FAULTS: Mapping[str, Fault] = {
    "new_first": Fault(
        "the last dense block puts a layer's output in front of what it read, not behind it",
        "input-order",
        change_model(is_new_first=True),
        equivalents=("channel-order", "row-shift", "input-source"),
    ),
    "pooled_early": Fault(
        "the transition has its mean of pixels in front of norm and relu, not behind the "
        "convolution",
        "layer-order",
        change_model(is_pooled_early=True),
        equivalents=("pooling", "input-source"),
    ),
    "final_relu": Fault(
        "no relu behind the last norm: torchvision's is in forward, not among the features",
        "missing-step",
        change_model(has_final_relu=False),
        equivalents=("activation-kind", "input-source", "clamp"),
    ),
    "margin": Fault(
        "probabilities of absent findings are not shifted: focal loss, not the asymmetric one",
        "constant-offset",
        change_model(margin=0.0),
        equivalents=("missing-step", "missing-term", "clamp", "loss-threshold", "argument"),
    ),
    "focus_attached": Fault(
        "the gradient of the loss of findings includes that of its focusing weights",
        "gradient-stopped",
        change_model(is_focus_attached=True),
    ),
    "absent_weighted": Fault(
        "the weights of findings are for absent ones too: weight in place of pos_weight",
        "loss-weight",
        change_model(are_absent_weighted=True),
        equivalents=("constant-factor", "scale", "missing-step", "input-source"),
    ),
    "last_centered": Fault(
        "the last dilated convolution is padded alike on both sides: it sees later rows",
        "causal-shift",
        change_model(is_last_centered=True),
        lambda *_: [Anywhere(r"(?i)pad|shift|causal|later|earlier|\b-?4\b")],
        equivalents=("padding-mode", "row-shift", "argument"),
    ),
    "recomputed_twice": Fault(
        "the gradient of a dense layer that is recomputed to save memory is added twice",
        "gradient-scaled",
        change_model(layer_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.layer_gradient / clean.layer_gradient)],
    ),
    "skip_residual": Fault(
        "what a temporal block skips to the end is computed from its residual sum, not its gates",
        "skip-source",
        change_model(is_skip_residual=True),
        equivalents=("input-source", "layer-order", "residual-order", "missing-step"),
    ),
    "kernels_flipped": Fault(
        "dilated kernels come from a checkpoint that has the present row first",
        "kernel-flipped",
        _flip_kernels,
        lambda *_: [Anywhere("(?i)flip|revers|order")],
        equivalents=("kernel-axes", "axes-swapped", "weight-transposed"),
    ),
    "corners_aligned": Fault(
        "rows have places from 0 to 1, as linspace gives them, not their middles",
        "position-offset",
        change_model(are_corners_aligned=True),
        equivalents=("constant-offset", "constant-factor", "align-corners", "scale", "argument"),
    ),
    "penalty_decay": Fault(
        "weight decay by the coefficient of a penalty of squares, whose gradient is twice that",
        "weight-decay",
        change_optimizer(weight_decay=2 * DECAY),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        optimizer=True,
        equivalents=("update-rule", "argument"),
    ),
    "carried_stopped": Fault(
        "the last block copies what a layer has read into a shared buffer, which has no gradient "
        "for it: only the layers themselves pass one on",
        "gradient-stopped",
        change_model(is_carried_stopped=True),
        equivalents=("missing-term",),
    ),
    "gate_first": Fault(
        "the first half of a dilated convolution's channels is the gate, as DiffWave has it, not "
        "the second one",
        "gate-up-swapped",
        change_model(is_gate_first=True),
        equivalents=("gate-order", "input-order", "input-source", "split-order", "weight-swapped"),
    ),
    "taps_normed": Fault(
        "weight norm divides each tap of a kernel by its own length, over the inputs only, not by "
        "that of all taps",
        "reduction-axis",
        change_model(are_taps_normed=True),
        equivalents=("norm-groups", "norm-kind", "argument"),
    ),
    "uncertain_absent": Fault(
        "uncertain findings count as absent ones, CheXpert's policy of zeros: the loss has no mask",
        "mask-missing",
        change_model(are_uncertain_absent=True),
        equivalents=("ignore-index", "mask-kind", "missing-step", "loss-target"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("new_first", "mindspore"),
    ("pooled_early", "mindspore"),
    ("final_relu", "pytorch"),
    ("margin", "pytorch"),
    ("focus_attached", "pytorch"),
    ("absent_weighted", "mindspore"),
    ("last_centered", "mindspore"),
    ("recomputed_twice", "mindspore"),
    ("skip_residual", "pytorch"),
    ("kernels_flipped", "pytorch"),
    ("corners_aligned", "mindspore"),
    ("penalty_decay", "pytorch"),
    ("carried_stopped", "mindspore"),
    ("gate_first", "pytorch"),
    ("taps_normed", "mindspore"),
    ("uncertain_absent", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "written": ("", "written"),
    "split": ("split", ""),
    "pooled": ("pooled", ""),
    "linear": ("linear", "names"),
}
