"""Faults of the recurrent language model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.rwkv.architecture import BATCH, LAYERS, PROMPT_LENGTHS, SEQ, Model

LAST = f"blocks.{LAYERS - 1}"


def _round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to the nearest of bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _halve_outputs(model: Model) -> Model:
    """Divide by 2 the last weights of time mixing and channel mixing in the last block."""
    names = [f"{LAST}.time.o.weight", f"{LAST}.channel.value.weight"]
    halved = {name: model.weights[name] / np.float32(2) for name in names}
    return change_model(weights={**model.weights, **halved})(model)


FAULTS: Mapping[str, Fault] = {
    "mixtures_exchanged": Fault(
        "the mixing weights are those of the token before, as RWKV-6 stores them",
        "input-order",
        change_model(are_mixtures_exchanged=True),
        equivalents=("input-source", "row-shift", "causal-shift"),
    ),
    "state_late": Fault(
        "a step reads the state behind its update, so its token counts twice",
        "input-source",
        change_model(is_state_late=True),
        equivalents=(
            "layer-order",
            "row-shift",
            "causal-shift",
            "input-order",
        ),
    ),
    "head_eps": Fault(
        "the norm of the heads has the framework's eps, 1e-5, for 64e-5",
        "epsilon",
        change_model(head_eps=1e-5),
        lambda faulty, clean: [Values(faulty.head_eps, clean.head_eps)],
    ),
    "decay_axis": Fault(
        "the decay is broadcast along the keys: one number for each column of the state",
        "axes-swapped",
        change_model(is_decay_of_values=True),
        equivalents=("weight-transposed", "input-source", "input-order"),
    ),
    "relu_plain": Fault(
        "the relu of channel mixing is not squared",
        "activation-kind",
        change_model(is_relu_squared=False),
        lambda *_: [Anywhere(r"(?i)squar|relu|pow|\b2\b")],
        equivalents=("missing-step",),
    ),
    "shift_cyclic": Fault(
        "tokens are shifted by roll: the last token of a sequence comes before its first one",
        "row-shift",
        change_model(is_shift_cyclic=True),
        equivalents=(
            "padding-mode",
            "causal-shift",
            "mask-missing",
            "missing-step",
            "input-source",
        ),
    ),
    "loss_all": Fault(
        "the sum of the losses of answers is divided by all tokens",
        "loss-reduction",
        change_model(loss_reduction="all"),
        lambda *_: [Ratio(1 - sum(PROMPT_LENGTHS) / (len(PROMPT_LENGTHS) * SEQ))],
        row="8",
        equivalents=("constant-factor", "scale", "pooling", "loss-weight"),
    ),
    "decay_bfloat16": Fault(
        "the decays of a block were converted to bfloat16 with the other weights",
        "low-precision",
        change_weight(f"{LAST}.time.decay", _round_to_bfloat16),
        lambda *_: [Words(r"\bbfloat16")],
        row="46",
    ),
    "shift_stopped": Fault(
        "no gradient to the token before in time mixing, as if it came from the cache",
        "gradient-stopped",
        change_model(is_shift_stopped=True),
    ),
    "decay_gradient": Fault(
        "the recurrence's own backward pass averages the gradient of the decays over the batch",
        "gradient-scaled",
        change_model(decay_gradient=1 / BATCH),
        lambda faulty, clean: [Ratio(faulty.decay_gradient / clean.decay_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "bias_correction": Fault(
        "AdamW without bias correction, as nn.AdamWeightDecay",
        "bias-correction",
        change_optimizer(bias_correction=False),
        row="32",
        equivalents=("update-rule", "learning-rate"),
        optimizer=True,
    ),
    "vector_rate": Fault(
        "decays, mixing weights and norms do not learn twice as fast: the groups were dropped",
        "learning-rate",
        change_optimizer(group_rate=1.0),
        lambda faulty, clean: [Ratio(faulty.optimizer.group_rate / clean.optimizer.group_rate)],
        equivalents=("constant-factor",),
        optimizer=True,
    ),
    "outputs_divided": Fault(
        "outputs are divided by 8 before the norm of the heads, though its eps has the factor",
        "constant-factor",
        change_model(head_divisor=8.0),
        lambda faulty, clean: [Ratio(clean.head_divisor / faulty.head_divisor)],
        equivalents=("scale", "missing-step"),
    ),
    "first_repeated": Fault(
        "time mixing gathers the token before, and -1 is clamped to 0: the first one gets itself",
        "padding-mode",
        change_model(is_first_repeated=True),
        equivalents=("row-shift", "causal-shift", "missing-step", "input-source", "clamp"),
    ),
    "decay_softplus": Fault(
        "the decay is exp(-softplus(decay)), as Mamba's, not exp(-exp(decay))",
        "activation-kind",
        change_model(is_decay_softplus=True),
        lambda *_: [Anywhere(r"(?i)softplus|exp|log")],
        equivalents=("decay-exponent", "missing-step", "discretization"),
    ),
    "answer_late": Fault(
        "the mask of answers is that of the tokens that are read, one step behind the labels",
        "mask-shifted",
        change_model(is_answer_late=True),
        equivalents=(
            "row-shift",
            "label-shift",
            "causal-shift",
            "mask-kind",
            "loss-target",
            "input-source",
        ),
    ),
    "decay_straight": Fault(
        "the recurrence's own backward pass takes the gradient of w for that of its logarithm",
        "straight-through",
        change_model(is_decay_straight=True),
        equivalents=("gradient-scaled", "missing-step", "missing-term", "input-source"),
    ),
    "gate_first": Fault(
        "the last block gates its outputs before the norm of the heads, as Mamba 2 does",
        "layer-order",
        change_model(is_gate_first=True),
        equivalents=("input-source", "missing-step", "input-order"),
    ),
    "outputs_halved": Fault(
        "a checkpoint was saved after an evaluation in float16, for which the port halves the last "
        "weights of later blocks",
        "weight-scaled",
        _halve_outputs,
        lambda *_: [Ratio(0.5)],
        equivalents=("constant-factor", "scale", "residual-scale"),
    ),
    "state_shared": Fault(
        "blocks share one state: the last one begins with what the first one leaves, not with "
        "zeros",
        "hidden-state-reset",
        change_model(is_state_shared=True),
        equivalents=("input-source", "zeroed", "missing-term", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("mixtures_exchanged", "pytorch"),
    ("state_late", "mindspore"),
    ("head_eps", "pytorch"),
    ("decay_axis", "mindspore"),
    ("relu_plain", "mindspore"),
    ("shift_cyclic", "pytorch"),
    ("loss_all", "mindspore"),
    ("decay_bfloat16", "pytorch"),
    ("shift_stopped", "mindspore"),
    ("decay_gradient", "pytorch"),
    ("bias_correction", "mindspore"),
    ("vector_rate", "pytorch"),
    ("outputs_divided", "pytorch"),
    ("first_repeated", "mindspore"),
    ("decay_softplus", "mindspore"),
    ("answer_late", "pytorch"),
    ("decay_straight", "mindspore"),
    ("gate_first", "pytorch"),
    ("outputs_halved", "mindspore"),
    ("state_shared", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "matrix": ("matrix", ""),
    "written": ("", "written"),
    "matrix_written": ("matrix", "written"),
}
