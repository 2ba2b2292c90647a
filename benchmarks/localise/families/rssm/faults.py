"""Faults of the recurrent state-space model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Values

from families.fault import Fault, change_model
from families.rssm.architecture import DETER, Model


def _exchange_gates(model: Model) -> Model:
    """Put the cell's rows into the order of reset, update, candidate."""
    weights = dict(model.weights)
    for name in ("cell.weight", "cell.norm.weight", "cell.norm.bias"):
        reset, candidate, update = np.split(weights[name], (DETER, 2 * DETER))
        weights[name] = np.concatenate([reset, update, candidate])
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "update_offset": Fault(
        "-1 is not added to the update gate before its sigmoid, as a usual cell has it",
        "constant-offset",
        change_model(update_offset=0.0),
        lambda *_: [Anywhere(r"(?i)(?<![\w.])-?(?:1|1\.0+\d*|0\.99\d*)(?![\w.])|add|term|offset")],
        equivalents=("forget-bias", "missing-term", "missing-step", "argument"),
    ),
    "channel_last": Fault(
        "the encoder's result is flattened pixel by pixel, as in the authors' code, whose arrays "
        "have channels last",
        "axes-swapped",
        change_model(is_channel_last=True),
        equivalents=("channel-order", "input-order", "split-order", "missing-step"),
    ),
    "action_kept": Fault(
        "the action before an episode begins is not set to zero, though the state is reset",
        "mask-missing",
        change_model(is_action_kept=True),
        equivalents=("missing-step", "input-source"),
    ),
    "free_of_mean": Fault(
        "free nats are those of the mean divergence, as by an option of DreamerV2, not of each "
        "step's",
        "layer-order",
        change_model(are_nats_free_of_mean=True),
        equivalents=(
            "clamp",
            "loss-threshold",
            "loss-reduction",
            "pooling",
            "missing-step",
            "input-source",
        ),
    ),
    "stops_exchanged": Fault(
        "the two divergences stop each other's gradient: the balance is the wrong way round",
        "gradient-stopped",
        change_model(are_stops_exchanged=True),
        equivalents=(
            "gradient-scaled",
            "loss-weight",
            "input-order",
            "input-source",
            "constant-factor",
            "scale",
        ),
    ),
    "free_gradient": Fault(
        "the own backward pass of a clipped divergence returns the gradient of those below the "
        "limit, too",
        "straight-through",
        change_model(is_free_gradient_passed=True),
        equivalents=(
            "gradient-stopped",
            "gradient-scaled",
            "clamp",
            "mask-missing",
            "missing-step",
        ),
    ),
    "cell_eps": Fault(
        "the norm of the cell has PyTorch's default eps, 1e-5, not 1e-3",
        "epsilon",
        change_model(cell_eps=1e-5),
        lambda faulty, clean: [Values(faulty.cell_eps, clean.cell_eps)],
        equivalents=("argument",),
    ),
    "divergence_reversed": Fault(
        "the divergence is that of the prior from the posterior: kl_div has its arguments in the "
        "other order",
        "input-order",
        change_model(is_divergence_reversed=True),
        equivalents=("input-source", "loss-kind", "loss-target", "argument"),
    ),
    "state_zero": Fault(
        "an episode begins with zeros, as in the first two Dreamers, not with the learned state",
        "hidden-state-reset",
        change_model(is_state_zero=True),
        equivalents=("zeroed", "input-source", "missing-step", "missing-term"),
    ),
    "reward_detached": Fault(
        "no gradient goes from the reward's head to the state: it is not among those with one",
        "gradient-stopped",
        change_model(is_reward_detached=True),
        equivalents=("missing-term",),
    ),
    "gates_exchanged": Fault(
        "the cell's rows come from a checkpoint with the order of PyTorch's own cell: reset, "
        "update, candidate",
        "weight-rows",
        _exchange_gates,
        lambda *_: [Anywhere("(?i)order|row|gate|block|exchang|swap|permut|split")],
        equivalents=("gate-order", "split-order", "heads-permuted", "channel-order"),
    ),
    "actions_late": Fault(
        "the loader gives each image the action that follows it, not the one that led to it",
        "row-shift",
        change_model(are_actions_late=True),
        equivalents=("batch", "input-source", "causal-shift", "position-offset"),
    ),
    "sample_stopped": Fault(
        "a sample is the one-hot vector alone: no gradient passes straight to the probabilities",
        "gradient-stopped",
        change_model(is_sample_straight=False),
        equivalents=("straight-through", "missing-term", "missing-step", "input-source"),
    ),
    "unmixed": Fault(
        "probabilities are those of the softmax alone, as in DreamerV2, without equal shares",
        "missing-step",
        change_model(is_mixed=False),
        equivalents=(
            "missing-term",
            "constant-offset",
            "constant-factor",
            "scale",
            "label-smoothing",
            "argument",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("update_offset", "mindspore"),
    ("channel_last", "mindspore"),
    ("action_kept", "mindspore"),
    ("free_of_mean", "mindspore"),
    ("stops_exchanged", "mindspore"),
    ("free_gradient", "mindspore"),
    ("cell_eps", "pytorch"),
    ("divergence_reversed", "pytorch"),
    ("state_zero", "pytorch"),
    ("reward_detached", "pytorch"),
    ("gates_exchanged", "pytorch"),
    ("actions_late", "pytorch"),
    ("sample_stopped", "mindspore"),
    ("unmixed", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "distributions": ("", "distributions"),
    "written": ("written", ""),
    "both": ("written", "distributions"),
}
