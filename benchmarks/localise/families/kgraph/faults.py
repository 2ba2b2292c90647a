"""Faults of link prediction on a knowledge graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model
from families.kgraph.architecture import ENTITIES, LAYERS, RELATIONS, Model


def _transpose_bases(model: Model) -> Model:
    """Return bases (in, out) read from a checkpoint as if they were (out, in)."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        bases = weights[f"layers.{n}.bases"]
        weights[f"layers.{n}.bases"] = np.ascontiguousarray(bases.swapaxes(1, 2))
    return replace(model, weights=weights)


def _alternate_inverses(model: Model) -> Model:
    """Return coefficients with each inverse relation behind its relation."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        name = f"layers.{n}.coefficients"
        halves = weights[name].reshape(2, RELATIONS, -1).swapaxes(0, 1)
        weights[name] = np.ascontiguousarray(halves).reshape(weights[name].shape)
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "degree_of_all": Fault(
        "messages are divided by the number of all edges to an entity, not of those with the same "
        "relation",
        "reduction-axis",
        change_model(is_degree_of_all=True),
        equivalents=("pooling", "missing-step", "input-source", "argument"),
    ),
    "parts_alternating": Fault(
        "ComplEx takes real and imaginary parts in turns, as a view of complex numbers has them, "
        "not in halves",
        "split-order",
        change_model(are_parts_alternating=True),
        equivalents=(
            "rope-layout",
            "channel-order",
            "heads-permuted",
            "axes-swapped",
            "input-order",
            "input-source",
        ),
    ),
    "filter_multiplied": Fault(
        "scores of true triples among the negatives are multiplied by 0 before the softmax, which "
        "still gives them a share",
        "mask-fill",
        change_model(is_filter_multiplied=True),
        equivalents=("mask-kind", "mask-missing"),
    ),
    "shares_attached": Fault(
        "the softmax that weights negatives has a gradient, as its detach is missing",
        "gradient-stopped",
        change_model(are_shares_attached=True),
        equivalents=("missing-term",),
    ),
    "bases_transposed": Fault(
        "bases (in, out) of a checkpoint are transposed like linear layers, which are (out, in)",
        "weight-transposed",
        _transpose_bases,
        lambda *_: [Anywhere("(?i)transpos|ax[ei]s|swap|exchang|permut")],
        equivalents=("axes-swapped",),
    ),
    "literals_standardized": Fault(
        "literals have the mean 0 and the deviation 1, not the minimum 0 and the maximum 1",
        "batch",
        change_model(are_literals_standardized=True),
        equivalents=("constant-factor", "constant-offset", "scale", "input-source"),
    ),
    "neighbour_of_padding": Fault(
        "the mask of neighbours has one more than there are: positions up to the number, with it",
        "mask-shifted",
        change_model(has_neighbour_of_padding=True),
        lambda *_: [Anywhere(r"(?i)mask|hid|fill|pad|shift|\b1\b|one|see|key|neighbo|column")],
        equivalents=("mask-kind", "mask-missing"),
    ),
    "rotation_repeated": Fault(
        "RotatE turns tails to negative heads by the rotation itself, not by its conjugate",
        "rope-direction",
        change_model(is_rotation_repeated=True),
        equivalents=("input-order", "constant-factor", "scale", "missing-step", "input-source"),
    ),
    "smoothing_of_conve": Fault(
        "smoothed labels have 1 / entities added, as ConvE's code has it, not smoothing / entities",
        "label-smoothing",
        change_model(smoothing_offset=1 / ENTITIES),
        lambda *_: [
            Anywhere(r"(?i)smooth|(?<![\w.])(?:0\.0714|0\.00714|0\.064[23])\d*(?![\w.]*\w)")
        ],
        equivalents=("loss-target", "constant-offset", "constant-factor", "scale", "missing-step"),
    ),
    "degree_undifferentiated": Fault(
        "a fused sum of messages has its own backward pass, which does not divide by the number of "
        "edges",
        "gradient-scaled",
        change_model(is_degree_differentiated=False),
        equivalents=("missing-step", "pooling", "input-source"),
    ),
    "inverses_alternating": Fault(
        "coefficients come from a toolkit in which each relation is followed by its inverse, and "
        "are loaded as if all inverses were behind all relations",
        "weight-rows",
        _alternate_inverses,
        lambda *_: [Anywhere("(?i)order|row|interleav|alternat|block|permut|exchang|swap")],
        equivalents=(
            "split-order",
            "heads-permuted",
            "channel-order",
            "experts-permuted",
            "axes-swapped",
        ),
    ),
    "n3_of_parts": Fault(
        "the N3 regularizer has cubes of real and imaginary parts, as for a real model, not of "
        "absolute values of complex numbers",
        "loss-kind",
        change_model(is_n3_of_parts=True),
        equivalents=("norm-kind", "missing-step", "reduction-axis", "layer-order", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("degree_of_all", "mindspore"),
    ("parts_alternating", "mindspore"),
    ("filter_multiplied", "mindspore"),
    ("shares_attached", "mindspore"),
    ("bases_transposed", "mindspore"),
    ("literals_standardized", "mindspore"),
    ("neighbour_of_padding", "pytorch"),
    ("rotation_repeated", "pytorch"),
    ("smoothing_of_conve", "pytorch"),
    ("degree_undifferentiated", "pytorch"),
    ("inverses_alternating", "pytorch"),
    ("n3_of_parts", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "dense": ("", "dense"),
    "written": ("written", ""),
    "both": ("written", "dense"),
}
