"""Faults of the reinforcement from verifiable rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Order, Ratio

from families.fault import Fault, change_model
from families.grpo.architecture import (
    GROUP,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    TEMPERATURE,
    Model,
)

#: The heads of queries with those that read the same key apart, as they are in the other layout.
_HEADS_APART = np.arange(HEADS).reshape(KV_HEADS, GROUP).T.ravel()


def _put_heads_apart(model: Model) -> Model:
    """Give the heads of frozen queries an order in which neighbours read different keys."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        heads = weights[f"layers.{n}.q.weight"].reshape(HEADS, HEAD_DIM, -1)
        weights[f"layers.{n}.q.weight"] = np.concatenate(heads[_HEADS_APART])
    return replace(model, weights=weights)


def _reset_value_head(model: Model) -> Model:
    """Give the head of values what it begins with, zeros."""
    zeros = {name: np.zeros_like(model.weights[name]) for name in ("value.weight", "value.bias")}
    return replace(model, weights={**model.weights, **zeros})


FAULTS: Mapping[str, Fault] = {
    "heads_normed_late": Fault(
        "queries and keys have their norms behind the rotation, as in Hunyuan, not before it",
        "layer-order",
        change_model(are_heads_normed_late=True),
        equivalents=("input-source",),
    ),
    "position_repeated": Fault(
        "positions of a completion are the last one of the prompt plus a range from 0, not from 1",
        "position-offset",
        change_model(is_position_repeated=True),
        equivalents=(
            "constant-offset",
            "row-shift",
            "missing-term",
            "missing-step",
            "argument",
            "input-source",
        ),
    ),
    "padding_bootstrapped": Fault(
        "the next value of a completion's last token is that of the padding behind it, not zero",
        "mask-missing",
        change_model(is_next_value_masked=False),
        equivalents=("missing-step", "mask-kind", "input-source"),
    ),
    "divergence_reversed": Fault(
        "the estimate of the divergence reads the policy less the reference, not the reference "
        "less the policy",
        "input-order",
        change_model(is_divergence_reversed=True),
        equivalents=("constant-factor", "scale", "input-source"),
    ),
    "group_gradient": Fault(
        "the backward pass of a kernel for groups of queries averages the gradients that these "
        "have for their key and value, it does not sum them",
        "gradient-scaled",
        change_model(is_group_gradient_averaged=True),
        lambda *_: [
            Anywhere(
                r"(?i)mean|average|1/3|(?<![\d.])(?:0\.33\d*|3(?:\.0\d*)?|2\.99\d*)(?![\d.]*\d)"
            )
        ],
        equivalents=("constant-factor", "scale", "pooling"),
    ),
    "value_head_lost": Fault(
        "the head of values is not loaded, the checkpoint has adapters only: it is zero",
        "zeroed",
        _reset_value_head,
        lambda *_: [Anywhere("filled with 0|all zeros|zero")],
        equivalents=("missing-term",),
    ),
    "temperature_missing": Fault(
        "logits are not divided by the temperature at which the completions were sampled",
        "missing-step",
        change_model(has_temperature=False),
        lambda *_: [Anywhere(r"(?<![\d.])(?:0\.7(?!\d)|0\.70\d*|0\.69\d*|1\.4[23]\d*)")],
        equivalents=("constant-factor", "scale", "argument"),
    ),
    "means_tiled": Fault(
        "mean and deviation of groups are repeated by repeat, not by repeat_interleave: samples "
        "get those of another group",
        "axes-swapped",
        change_model(are_means_tiled=True),
        equivalents=(
            "heads-permuted",
            "input-order",
            "row-shift",
            "split-order",
            "channel-order",
            "input-source",
            "missing-step",
            "argument",
        ),
    ),
    "token_mean": Fault(
        "the objective is the mean over all tokens, as in DAPO, not over sequences of their mean",
        "loss-reduction",
        change_model(is_token_mean=True),
        equivalents=("pooling", "loss-weight", "missing-step", "reduction-axis"),
    ),
    "divergence_stopped": Fault(
        "the divergence from the reference is computed of detached likelihoods, as where it is a "
        "part of the reward",
        "gradient-stopped",
        change_model(is_divergence_stopped=True),
        equivalents=("missing-term",),
    ),
    "heads_apart": Fault(
        "frozen queries are loaded from a layout whose neighbouring heads read different keys; "
        "adapters and output projection are not",
        "heads-permuted",
        _put_heads_apart,
        lambda *_: [Order(tuple(_HEADS_APART.tolist()), HEAD_DIM)],
        equivalents=("axes-swapped", "weight-rows", "split-order", "channel-order"),
    ),
    "old_logps_raw": Fault(
        "likelihoods then are those that the engine of inference returns, of logits before they "
        "are divided by the temperature",
        "batch",
        change_model(are_old_logps_raw=True),
        equivalents=("input-source", "loss-target"),
    ),
    "temperature_gradient": Fault(
        "the backward pass of a fused kernel for likelihoods leaves the temperature out: gradients "
        "of logits are not divided by it",
        "gradient-scaled",
        change_model(is_temperature_derived=False),
        lambda *_: [Ratio(TEMPERATURE)],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "values_late": Fault(
        "the value of a token is that of the state at this token, not of the state before it, "
        "which predicts it",
        "row-shift",
        change_model(are_values_late=True),
        equivalents=("position-offset", "label-shift", "causal-shift", "input-source", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("heads_normed_late", "mindspore"),
    ("position_repeated", "mindspore"),
    ("padding_bootstrapped", "mindspore"),
    ("divergence_reversed", "mindspore"),
    ("group_gradient", "mindspore"),
    ("value_head_lost", "mindspore"),
    ("temperature_missing", "pytorch"),
    ("means_tiled", "pytorch"),
    ("token_mean", "pytorch"),
    ("divergence_stopped", "pytorch"),
    ("heads_apart", "pytorch"),
    ("old_logps_raw", "pytorch"),
    ("temperature_gradient", "mindspore"),
    ("values_late", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
