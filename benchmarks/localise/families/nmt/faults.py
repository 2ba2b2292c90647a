"""Faults of the recurrent translator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_weight
from families.nmt.architecture import ATTENTION, BATCH, EMBED, PADDING, TARGET_LENGTHS, Model


def _swap_directions(model: Model) -> Model:
    """Give each direction of the encoder the weights of the other."""
    weights = dict(model.weights)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        forward, backward = (f"encoder.{path}.{name}" for path in ("forward", "backward"))
        weights[forward], weights[backward] = model.weights[backward], model.weights[forward]
    return replace(model, weights=weights)


def _clear_padding(table: np.ndarray) -> np.ndarray:
    """Return a table whose row of padding is zero."""
    table[PADDING] = 0
    return table


FAULTS: Mapping[str, Fault] = {
    "gate_order": Fault(
        "reset and update gate exchanged, as in frameworks that store update first",
        "gate-order",
        change_model(gate_order=(1, 0, 2)),
        lambda *_: [Anywhere("gate|order|exchanged|swapped")],
        equivalents=("split-order",),
    ),
    "source_mask": Fault(
        "the decoder attends to the padding of the source",
        "cross-mask",
        change_model(is_source_masked=False),
        lambda *_: [Anywhere("mask|padding")],
        equivalents=("mask-missing",),
    ),
    "energy_linear": Fault(
        "energies without tanh",
        "activation-kind",
        change_model(is_energy_activated=False),
        lambda *_: [Anywhere("tanh")],
        equivalents=("missing-step",),
    ),
    "initial_state": Fault(
        "the decoder begins with zeros, not with the state of the encoder",
        "hidden-state-reset",
        change_model(is_state_bridged=False),
        lambda *_: [Anywhere("zero")],
    ),
    "backward_order": Fault(
        "states of the backward direction in the order in which they were computed",
        "scan-direction",
        change_model(is_backward_restored=False),
        lambda *_: [Anywhere("revers|flip|order")],
        equivalents=("row-shift",),
    ),
    "directions_swapped": Fault(
        "the weights of both directions of the encoder exchanged on load",
        "weight-swapped",
        _swap_directions,
        lambda *_: [Anywhere("reverse")],
    ),
    "half_energies": Fault(
        "energies of the attention in float16",
        "low-precision",
        change_model(are_energies_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "loss_sentences": Fault(
        "the sum of the losses divided by the sentences, not by the tokens",
        "loss-reduction",
        change_model(loss_reduction="sentences"),
        lambda *_: [Ratio(sum(TARGET_LENGTHS) / BATCH)],
        row="8",
        equivalents=("constant-factor",),
    ),
    "alignment_stopped": Fault(
        "no gradient through the weights of the attention",
        "gradient-stopped",
        change_model(is_alignment_stopped=True),
    ),
    "gradient_by_count": Fault(
        "the gradient of a target token is divided by its number in the batch",
        "gradient-scaled",
        change_model(is_gradient_by_count=True),
        lambda *_: [Anywhere("row|count|number|frequen|occur|token")],
    ),
    "update_exchanged": Fault(
        "the update gate keeps the candidate, not the state, as the paper writes it",
        "input-order",
        change_model(is_update_exchanged=True),
        equivalents=("input-source", "gate-order", "gate-up-swapped", "cell-form"),
    ),
    "readout_early": Fault(
        "the readout reads the decoder's state before a step, not behind it",
        "input-source",
        change_model(is_readout_early=True),
        equivalents=("row-shift", "causal-shift"),
    ),
    "reset_early": Fault(
        "the decoder's reset gate multiplies the state before its linear layer, as in the paper",
        "cell-form",
        change_model(is_reset_early=True),
        equivalents=("layer-order", "input-source", "input-order"),
    ),
    "label_smoothing": Fault(
        "labels are smoothed by 0.1",
        "label-smoothing",
        change_model(label_smoothing=0.1),
        lambda faulty, clean: [Values(faulty.label_smoothing, clean.label_smoothing)],
    ),
    "state_bias": Fault(
        "the recurrent bias of the decoder is zero: the checkpoint has one bias for each gate",
        "zeroed",
        change_weight("decoder.bias_hh", np.zeros_like),
        lambda *_: [Anywhere("bias|zero|filled with 0")],
        equivalents=("bias-missing",),
    ),
    "padding_counted": Fault(
        "labels of padding count in the loss: the criterion knows no index to ignore",
        "ignore-index",
        change_model(is_padding_counted=True),
        equivalents=("loss-reduction", "loss-weight", "mask-missing", "argument"),
    ),
    "energy_scale": Fault(
        "energies divided by the root of their size, as scores of a dot product",
        "scale",
        change_model(energy_scale=ATTENTION**-0.5),
        lambda faulty, clean: [Ratio(faulty.energy_scale / clean.energy_scale)],
        equivalents=("constant-factor", "missing-step", "argument"),
    ),
    "padding_row": Fault(
        "the source's row of padding is zero, as padding_idx sets it, not as it was trained",
        "weight-rows",
        change_weight("source.embedding.weight", _clear_padding),
        lambda *_: [Anywhere(r"row|zero|filled with 0|\b0\b")],
        equivalents=("zeroed",),
    ),
    "mask_late": Fault(
        "the mask sets weights of padding to zero behind the softmax: the others do not sum to 1",
        "mask-kind",
        change_model(is_mask_late=True),
        lambda *_: [Anywhere("(?i)mask|padding|fill|softmax|normali[sz]|sum")],
        equivalents=(
            "mask-missing",
            "cross-mask",
            "mask-fill",
            "layer-order",
            "missing-step",
            "missing-term",
            "input-source",
        ),
    ),
    "bridge_mean": Fault(
        "the decoder begins with the mean of the backward states, not with the last one",
        "pooling",
        change_model(bridged_state="mean"),
        lambda *_: [Anywhere("(?i)mean|average|last|first|element|slice|select|pool|row")],
        equivalents=("input-source", "reduction-axis", "missing-step", "argument"),
    ),
    "bridge_end": Fault(
        "the decoder begins with output[:, -1], whose backward half has read the last token only",
        "input-source",
        change_model(bridged_state="end"),
        equivalents=("row-shift", "position-offset", "scan-direction", "pooling", "argument"),
    ),
    "parts_activated": Fault(
        "energies are those of tanh of the query plus tanh of the key, not of tanh of their sum",
        "layer-order",
        change_model(are_parts_activated=True),
        lambda *_: [Anywhere("(?i)tanh|activation|order|sum|add|before|after|behind")],
        equivalents=("activation-kind", "missing-step", "input-source", "residual-order"),
    ),
    "padding_skipped": Fault(
        "the encoder gets the lengths: its backward direction begins at the last token, not at "
        "padding",
        "missing-step",
        change_model(is_padding_skipped=True),
        equivalents=(
            "mask-missing",
            "mask-kind",
            "hidden-state-reset",
            "scan-direction",
            "input-source",
            "cell-form",
        ),
    ),
    "softmax_axis": Fault(
        "energies are normalized over the sentences, as in code whose first axis is the source",
        "softmax-axis",
        change_model(softmax_axis=0),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|softmax")],
        equivalents=("reduction-axis", "argument", "axes-swapped"),
    ),
    "begin_is_padding": Fault(
        "the decoder's first token is that of padding, as Marian's models begin, not its own one",
        "batch",
        change_model(begin=PADDING),
        equivalents=("input-source", "argument"),
    ),
    "context_first": Fault(
        "the decoder's input weights come from a checkpoint whose cell reads the context in front "
        "of the token, not behind it",
        "channel-order",
        change_weight("decoder.weight_ih", lambda weight: np.roll(weight, -EMBED, axis=1)),
        lambda *_: [
            Anywhere(
                r"(?i)order|column|channel|exchang|swap|permut|row|roll|shift|concat|split|part"
            )
        ],
        equivalents=("input-order", "weight-rows", "split-order", "weight-swapped", "row-shift"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("gate_order", "mindspore"),
    ("source_mask", "pytorch"),
    ("energy_linear", "pytorch"),
    ("initial_state", "mindspore"),
    ("backward_order", "mindspore"),
    ("directions_swapped", "pytorch"),
    ("half_energies", "mindspore"),
    ("loss_sentences", "pytorch"),
    ("alignment_stopped", "mindspore"),
    ("gradient_by_count", "pytorch"),
    ("update_exchanged", "mindspore"),
    ("readout_early", "pytorch"),
    ("reset_early", "mindspore"),
    ("label_smoothing", "pytorch"),
    ("state_bias", "mindspore"),
    ("padding_counted", "pytorch"),
    ("energy_scale", "mindspore"),
    ("padding_row", "pytorch"),
    ("mask_late", "mindspore"),
    ("bridge_mean", "pytorch"),
    ("bridge_end", "mindspore"),
    ("parts_activated", "pytorch"),
    ("padding_skipped", "mindspore"),
    ("softmax_axis", "pytorch"),
    ("begin_is_padding", "mindspore"),
    ("context_first", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "written": ("", "written"),
    "joint": ("", "joint"),
    "projected": ("projected", ""),
}
