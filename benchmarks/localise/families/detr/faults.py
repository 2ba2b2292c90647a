"""Faults of the detector by set prediction."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio

from families.detr.architecture import HEAD_DIM, Model
from families.fault import Fault, change_model


def _swap_box_layers(model: Model) -> Model:
    """Exchange the first two layers of the MLP of the boxes."""
    weights = dict(model.weights)
    for name in ("weight", "bias"):
        first, second = f"boxes.0.{name}", f"boxes.1.{name}"
        weights[first], weights[second] = weights[second], weights[first]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "values_positioned": Fault(
        "positions are added to the encoder's values too, as if at its input",
        "input-source",
        change_model(are_values_positioned=True),
        equivalents=("missing-term", "missing-step", "layer-order", "position-offset"),
    ),
    "norm_unfrozen": Fault(
        "the backbone's batch norms are not frozen: they use the statistics of the batch",
        "running-statistics",
        change_model(is_norm_frozen=False),
        equivalents=("argument", "norm-kind", "norm-missing"),
    ),
    "cross_positions": Fault(
        "the decoder's states ask the tokens without the positions that the learned queries are",
        "missing-term",
        change_model(has_cross_positions=False),
        equivalents=("missing-step", "input-source", "skip-missing", "skip-source"),
    ),
    "no_object_first": Fault(
        "the low weight of 'no object' is that of the first class, where others have background",
        "loss-weight",
        change_model(no_object_index=0),
        equivalents=("row-shift", "argument", "constant-factor", "channel-order", "input-source"),
    ),
    "query_gradient": Fault(
        "fused attention does not scale the gradient of queries by the root of the heads' size",
        "gradient-scaled",
        change_model(query_gradient=HEAD_DIM**0.5),
        lambda faulty, clean: [Ratio(faulty.query_gradient / clean.query_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "box_layers_swapped": Fault(
        "the first two layers of the MLP of boxes have each other's weights",
        "weight-swapped",
        _swap_box_layers,
        equivalents=("layer-order", "weight-rows", "input-source"),
    ),
    "position_scale": Fault(
        "normalized positions reach from 0 to 1, they are not multiplied by 2 pi",
        "constant-factor",
        change_model(position_scale=1.0),
        lambda faulty, clean: [Ratio(faulty.position_scale / clean.position_scale)],
        equivalents=("scale", "missing-step", "argument", "rope-scaling"),
    ),
    "states_unnormed": Fault(
        "the last norm is for the last layer only: auxiliary heads read states without it",
        "norm-missing",
        change_model(are_states_normed=False),
        equivalents=("missing-step", "input-source", "layer-order"),
    ),
    "cross_unmasked": Fault(
        "the decoder attends to padding: the mask reaches the encoder only",
        "mask-missing",
        change_model(has_cross_mask=False),
        equivalents=("cross-mask", "missing-step", "mask-kind", "argument"),
    ),
    "states_stopped": Fault(
        "a layer of the decoder gets states without a gradient, as reference points are passed on",
        "gradient-stopped",
        change_model(are_states_stopped=True),
        equivalents=("missing-term",),
    ),
    "enclosing_detached": Fault(
        "the area that encloses a box and its target is a constant for the gradient",
        "gradient-stopped",
        change_model(is_enclosing_detached=True),
        equivalents=("missing-term",),
    ),
    "objects_sorted": Fault(
        "matched objects are in their own order, not in that of the queries they are matched with",
        "row-shift",
        change_model(are_objects_sorted=True),
        equivalents=("batch", "loss-target", "input-order", "input-source", "label-shift"),
    ),
    "boxes_at_corners": Fault(
        "objects are given by their left upper corner and their size, as COCO stores them, not by "
        "their center",
        "loss-target",
        change_model(are_boxes_at_corners=True),
        equivalents=("missing-term", "missing-step", "constant-offset", "input-source", "batch"),
    ),
    "states_queries": Fault(
        "the decoder's states begin as the learned queries, which are its positions too, not as "
        "zeros",
        "input-source",
        change_model(are_states_queries=True),
        equivalents=(
            "hidden-state-reset",
            "zeroed",
            "missing-step",
            "missing-term",
            "constant-factor",
        ),
    ),
    "cells_centered": Fault(
        "positions are those of the cells' centers, half a cell less, as Deformable DETR has them",
        "position-offset",
        change_model(position_offset=-0.5),
        lambda *_: [Anywhere(r"(?i)shift|offset|add|constant|align|half|term|0?\.(?:5|49)")],
        equivalents=("constant-offset", "align-corners", "missing-step", "missing-term"),
    ),
    "mask_inverted": Fault(
        "the batch has a mask of pixels, true where an image is, as Hugging Face's processor "
        "returns it; the original code reads it as the mask of padding",
        "batch",
        change_model(is_mask_inverted=True),
        equivalents=("mask-kind", "cross-mask", "missing-step", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("values_positioned", "mindspore"),
    ("norm_unfrozen", "mindspore"),
    ("cross_positions", "mindspore"),
    ("no_object_first", "mindspore"),
    ("query_gradient", "mindspore"),
    ("box_layers_swapped", "mindspore"),
    ("position_scale", "pytorch"),
    ("states_unnormed", "pytorch"),
    ("cross_unmasked", "pytorch"),
    ("states_stopped", "pytorch"),
    ("enclosing_detached", "pytorch"),
    ("objects_sorted", "pytorch"),
    ("boxes_at_corners", "mindspore"),
    ("states_queries", "pytorch"),
    ("cells_centered", "mindspore"),
    ("mask_inverted", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "original": ("", "original"),
    "written": ("written", ""),
    "both": ("written", "original"),
}
