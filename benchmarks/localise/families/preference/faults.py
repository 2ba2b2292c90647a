"""Faults of the preference training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.preference.architecture import ALPHA, LAYERS, RANK, Model


def _exchange_adapters(model: Model) -> Model:
    """Exchange the first matrices, of one shape, of the adapters of queries and values."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        query, value = (f"layers.{n}.{name}.a.weight" for name in "qv")
        weights[query], weights[value] = weights[value], weights[query]
    return replace(model, weights=weights)


def _reset_down_adapters(model: Model) -> Model:
    """Give the adapters of the down projections the B that they begin with, zeros."""
    names = [f"layers.{n}.down.b.weight" for n in range(LAYERS)]
    zeros = {name: np.zeros_like(model.weights[name]) for name in names}
    return replace(model, weights={**model.weights, **zeros})


FAULTS: Mapping[str, Fault] = {
    "scaling_root": Fault(
        "adapters are multiplied by alpha over the root of the rank, as rsLoRA does, not over it",
        "constant-factor",
        change_model(scaling=ALPHA / RANK**0.5),
        lambda faulty, clean: [Ratio(faulty.scaling / clean.scaling)],
        equivalents=("scale", "residual-scale", "argument"),
    ),
    "answer_mean": Fault(
        "the mean of the likelihoods' logarithms of an answer's tokens, IPO's, not their sum",
        "loss-reduction",
        change_model(reduction="mean"),
        equivalents=("pooling", "missing-step"),
    ),
    "smoothing_robust": Fault(
        "labels are smoothed as in robust DPO: the other label's loss is subtracted, and the "
        "difference divided by 1 - 2 * smoothing",
        "label-smoothing",
        change_model(smoothing_kind="robust"),
        equivalents=("constant-factor", "scale", "loss-weight", "missing-step", "missing-term"),
    ),
    "sft_stopped": Fault(
        "the cross entropy is detached, for the metrics, before it is added to the loss",
        "gradient-stopped",
        change_model(is_sft_stopped=True),
        equivalents=("missing-term", "missing-step"),
    ),
    "answer_mask_late": Fault(
        "the mask of answers is that of the tokens that are read, one step behind the labels",
        "mask-shifted",
        change_model(is_answer_mask_late=True),
        equivalents=(
            "row-shift",
            "label-shift",
            "causal-shift",
            "mask-kind",
            "loss-target",
            "input-source",
        ),
    ),
    "padding_seen": Fault(
        "tokens attend to the padding in front of their prompt: the mask is only causal",
        "mask-missing",
        change_model(is_padding_masked=False),
        equivalents=("mask-kind", "missing-step", "input-source"),
    ),
    "query_gradient": Fault(
        "the gradient of what the B of queries reads is summed over two tensor-parallel ranks, "
        "which both have the whole B",
        "gradient-scaled",
        change_model(query_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.query_gradient / clean.query_gradient)],
        row="20",
    ),
    "reference_adapted": Fault(
        "the adapters of the down projections stay on in the reference policy",
        "missing-term",
        change_model(is_reference_adapted=True),
        equivalents=("missing-step", "skip-missing", "input-source", "zeroed"),
    ),
    "pairs_adjacent": Fault(
        "rows are taken as chosen and rejected in turn, but are all chosen, then all rejected ones",
        "split-order",
        change_model(are_pairs_adjacent=True),
        equivalents=("input-order", "row-shift", "axes-swapped", "input-source", "batch"),
    ),
    "adapters_exchanged": Fault(
        "the A of queries and values are exchanged: adapters are loaded in the order of a set",
        "weight-swapped",
        _exchange_adapters,
        lambda *_: [Anywhere(r"(?i)lora|[qv]_proj|w[qv]\b")],
        equivalents=("input-source",),
    ),
    "default_decay": Fault(
        "AdamW has the framework's weight decay, 0.01, not 0.1",
        "weight-decay",
        change_optimizer(weight_decay=0.01),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        row="32",
        optimizer=True,
        equivalents=("argument",),
    ),
    "bias_correction": Fault(
        "MindSpore's AdamWeightDecay, which does not correct the bias of the moments",
        "bias-correction",
        change_optimizer(bias_correction=False),
        row="32",
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "adapters_lost": Fault(
        "the adapters of the down projections are not loaded, their names have changed: B is zero",
        "zeroed",
        _reset_down_adapters,
        lambda *_: [Anywhere("filled with 0|all zeros|zero")],
        equivalents=("missing-term",),
    ),
    "prompt_trained": Fault(
        "the cross entropy counts the tokens of prompts too, its labels are a copy from before the "
        "prompts are masked",
        "ignore-index",
        change_model(is_prompt_trained=True),
        equivalents=(
            "mask-missing",
            "mask-kind",
            "loss-target",
            "loss-reduction",
            "missing-step",
            "input-source",
        ),
    ),
    "default_base": Fault(
        "the base of the rotary frequencies is 10000, the port's default, not 1000000",
        "rope-theta",
        change_model(rope_base=1e4),
        lambda faulty, clean: [Values(faulty.rope_base, clean.rope_base)],
        equivalents=("rope-scaling", "argument"),
    ),
    "first_layer_stopped": Fault(
        "the first layer is recomputed in the backward pass, but its input, of a frozen table, "
        "wants no gradient: its adapters get none",
        "gradient-stopped",
        change_model(is_first_layer_stopped=True),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("scaling_root", "pytorch"),
    ("answer_mean", "pytorch"),
    ("smoothing_robust", "pytorch"),
    ("sft_stopped", "mindspore"),
    ("answer_mask_late", "mindspore"),
    ("padding_seen", "mindspore"),
    ("query_gradient", "mindspore"),
    ("reference_adapted", "pytorch"),
    ("pairs_adjacent", "mindspore"),
    ("adapters_exchanged", "pytorch"),
    ("default_decay", "pytorch"),
    ("bias_correction", "mindspore"),
    ("adapters_lost", "mindspore"),
    ("prompt_trained", "pytorch"),
    ("default_base", "mindspore"),
    ("first_layer_stopped", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "merged": ("written", "merged"),
}
