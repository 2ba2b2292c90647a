"""Faults of the decision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.decision.architecture import HEAD_DIM, HEADS, LAYERS, WIDE, Model
from families.fault import Fault, change_model


def _load_norms_by_order(model: Model) -> Model:
    """Return norms with the weights of a file that has the norm of tokens behind all others."""
    blocks = [f"block.{n}.norm{part}" for n in range(LAYERS) for part in (1, 2)]
    names = ["embed.norm", *blocks, "norm"]
    names_of_file = [*blocks, "norm", "embed.norm"]
    weights = dict(model.weights)
    for name, name_of_file in zip(names, names_of_file, strict=True):
        for kind in ("weight", "bias"):
            weights[f"{name}.{kind}"] = model.weights[f"{name_of_file}.{kind}"]
    return replace(model, weights=weights)


def _join_by_head(model: Model) -> Model:
    """Return joined projections with the rows (head, kind, number), not (kind, head, number)."""
    rows = np.arange(3 * WIDE).reshape(3, HEADS, HEAD_DIM).swapaxes(0, 1).ravel()
    weights = dict(model.weights)
    for n in range(LAYERS):
        for kind in ("weight", "bias"):
            name = f"block.{n}.qkv.{kind}"
            weights[name] = np.ascontiguousarray(weights[name][rows])
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "returns_cut": Fault(
        "returns-to-go are sums of the rewards of the window: the window is cut out before they "
        "are summed, not behind it",
        "batch",
        change_model(are_returns_cut=True),
        equivalents=(
            "input-source",
            "constant-offset",
            "missing-term",
            "missing-step",
            "layer-order",
        ),
    ),
    "states_first": Fault(
        "tokens of a step have the order state, return, action, as in the multi-game version",
        "input-order",
        change_model(are_states_first=True),
        equivalents=(
            "input-source",
            "channel-order",
            "split-order",
            "axes-swapped",
            "heads-permuted",
            "row-shift",
        ),
    ),
    "results_of_states": Fault(
        "the next state and return are predicted from the state's token, as the action is, which "
        "does not see the action",
        "input-source",
        change_model(are_results_of_states=True),
        equivalents=(
            "row-shift",
            "position-offset",
            "causal-shift",
            "split-order",
            "input-order",
            "argument",
        ),
    ),
    "eps_in_root": Fault(
        "states are divided by the root of their variance plus EPS, not by their deviation plus "
        "EPS: one number of a state has a deviation near to the root of EPS",
        "epsilon",
        change_model(is_eps_in_root=True),
        lambda *_: [
            Anywhere(
                r"(?i)eps|root|sqrt|varian|deviation|divi|factor|scal|constant|"
                r"(?<![\w.])(?:0\.83\d*|1\.20\d*)(?![\w.]*\d)"
            )
        ],
        equivalents=("constant-factor", "scale", "layer-order", "argument"),
    ),
    "norms_by_order": Fault(
        "norms are loaded by their order from a file of another framework, where the norm of "
        "tokens is behind those of the GPT: each one gets the weights of the next",
        "weight-swapped",
        _load_norms_by_order,
        equivalents=("input-source", "input-order", "layer-order"),
    ),
    "embedding_gradient": Fault(
        "the gradient of tokens is a tenth where it reaches their embeddings: GLM's shrinking of "
        "it, for stable training, is left on",
        "gradient-scaled",
        change_model(embedding_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.embedding_gradient / clean.embedding_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "positions_counted": Fault(
        "the GPT is not given positions of zero and counts its tokens, the default: they have "
        "positions besides their time steps",
        "position-offset",
        change_model(are_positions_counted=True),
        lambda *_: [
            Anywhere(r"(?i)position|shift|offset|row|read|index|zero|added|gather|argument|step")
        ],
        equivalents=("input-source", "row-shift", "argument", "missing-step", "zeroed"),
    ),
    "mask_tiled": Fault(
        "the mask of tokens is that of steps three times behind each other, not each step's number "
        "three times",
        "mask-kind",
        change_model(is_mask_tiled=True),
        lambda *_: [
            Anywhere("(?i)mask|ax[ei]s|order|hid|fill|padd|transpos|permut|row|key|column|shift")
        ],
        equivalents=(
            "axes-swapped",
            "missing-step",
            "mask-shifted",
            "mask-missing",
            "input-order",
            "input-source",
            "row-shift",
        ),
    ),
    "scores_divided_by_layer": Fault(
        "scores of a layer are divided by its number, too: scale_attn_by_inverse_layer_idx, an "
        "option of GPT-2",
        "scale",
        change_model(are_scores_divided_by_layer=True),
        lambda *_: [Ratio(1 / 2)],
        equivalents=("constant-factor", "argument"),
    ),
    "first_step_padding": Fault(
        "the table of time steps has 0 as its index of padding, which is also the first step of an "
        "episode: its row gets no gradient",
        "gradient-stopped",
        change_model(is_first_step_padding=True),
        equivalents=("missing-term", "argument"),
    ),
    "joined_by_head": Fault(
        "joined projections come from a Megatron checkpoint, which has query, key and value of a "
        "head next to each other, and are loaded as they are",
        "weight-rows",
        _join_by_head,
        lambda *_: [Anywhere("(?i)order|row|interleav|block|permut|exchang|swap|ax[ei]s|head")],
        equivalents=("split-order", "heads-permuted", "axes-swapped", "channel-order"),
    ),
    "pairs_late": Fault(
        "a pair of steps counts in the loss of states if the second one is real, as with padding "
        "behind: padding in front is paired with the first real step",
        "mask-shifted",
        change_model(are_pairs_late=True),
        lambda *_: [Anywhere(r"(?i)mask|shift|row|step|hid|count|label|loss|mean|token|\b1\b")],
        equivalents=(
            "mask-kind",
            "mask-missing",
            "row-shift",
            "position-offset",
            "label-shift",
            "ignore-index",
            "loss-reduction",
            "input-source",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("returns_cut", "mindspore"),
    ("states_first", "mindspore"),
    ("results_of_states", "mindspore"),
    ("eps_in_root", "mindspore"),
    ("norms_by_order", "mindspore"),
    ("embedding_gradient", "mindspore"),
    ("positions_counted", "pytorch"),
    ("mask_tiled", "pytorch"),
    ("scores_divided_by_layer", "pytorch"),
    ("first_step_padding", "pytorch"),
    ("joined_by_head", "pytorch"),
    ("pairs_late", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
