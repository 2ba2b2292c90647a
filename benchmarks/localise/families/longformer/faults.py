"""Faults of the document encoder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Order, Ratio

from families.fault import Fault, change_model, change_weight
from families.longformer.architecture import (
    BATCH,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LENGTH,
    MASKED,
    PAD,
    WINDOW,
    Model,
)

#: Rows of a projection whose axis of heads lies behind that of the head's dimensions.
_HEADS_LAST = np.arange(HIDDEN).reshape(HEADS, HEAD_DIM).T.ravel()


def _put_heads_last(model: Model) -> Model:
    """Order the rows of the first layer's global queries with the heads last."""
    weights = dict(model.weights)
    for name in ("weight", "bias"):
        path = f"layers.0.global_q.{name}"
        weights[path] = np.ascontiguousarray(weights[path][_HEADS_LAST])
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "global_unscaled": Fault(
        "queries of global tokens are not divided by the root of the head's size, as local ones",
        "scale",
        change_model(is_global_query_scaled=False),
        lambda *_: [Ratio(HEAD_DIM**0.5)],
        equivalents=("constant-factor", "missing-step", "missing-term"),
    ),
    "values_late": Fault(
        "values have one row of padding too few before them: a window's scores meet the values of "
        "the tokens behind its own",
        "row-shift",
        change_model(value_padding=WINDOW - 1),
        lambda *_: [Anywhere(r"(?i)shift|offset|pad|row|-?\b1\b|concat|position|slice")],
        equivalents=(
            "position-offset",
            "padding-mode",
            "mask-shifted",
            "input-source",
            "input-order",
            "split-order",
            "argument",
        ),
    ),
    "global_values_local": Fault(
        "global tokens read values of the local projection, not of their own",
        "input-source",
        change_model(are_global_values_local=True),
        equivalents=("weight-swapped", "missing-step", "layer-order"),
    ),
    "late_labels": Fault(
        "positions of answers beyond the text are clipped to its last token, not to the length, "
        "which is ignored",
        "ignore-index",
        change_model(last_label=Model.last_label - 1),
        equivalents=(
            "clamp",
            "loss-target",
            "loss-reduction",
            "loss-weight",
            "label-shift",
            "mask-missing",
            "constant-offset",
            "argument",
            "input-source",
        ),
    ),
    "next_keys_stopped": Fault(
        "the keys of a chunk's second half, which it shares with the next one, are a copy without "
        "a gradient",
        "gradient-stopped",
        change_model(are_next_keys_stopped=True),
        equivalents=("missing-term", "gradient-scaled"),
    ),
    "global_gradient": Fault(
        "both ranks of a sequence hold the global tokens, whose gradient is summed over them: "
        "global attention has it twice",
        "gradient-scaled",
        change_model(global_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.global_gradient / clean.global_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "global_added": Fault(
        "what global tokens read is added to their local output, it does not take its place",
        "missing-term",
        change_model(is_global_output_added=True),
        equivalents=(
            "missing-step",
            "input-source",
            "skip-missing",
            "skip-source",
            "mask-missing",
            "argument",
        ),
    ),
    "slots_averaged": Fault(
        "the pooled state is the mean of all slots of global tokens, also of the empty ones",
        "pooling",
        change_model(are_slots_averaged=True),
        equivalents=(
            "constant-factor",
            "scale",
            "mask-missing",
            "reduction-axis",
            "missing-step",
            "input-source",
        ),
    ),
    "globals_in_windows": Fault(
        "windows hide padding only: a global token nearby is counted there and in its slot",
        "mask-missing",
        change_model(are_globals_in_windows=True),
        equivalents=("mask-kind", "mask-shifted", "missing-step", "missing-term", "input-source"),
    ),
    "padding_counted": Fault(
        "positions are numbers of rows: padding between question and document counts too",
        "position-offset",
        change_model(is_padding_counted=True),
        equivalents=(
            "row-shift",
            "input-source",
            "missing-step",
            "mask-missing",
            "constant-offset",
            "argument",
            "batch",
        ),
    ),
    "slot_sum_detached": Fault(
        "softmax over window and slots is put together from two kernels; the sum that the kernel "
        "of the slots returns has no gradient",
        "gradient-stopped",
        change_model(is_slot_sum_detached=True),
        equivalents=("missing-term",),
    ),
    "heads_last": Fault(
        "rows of a global query's projection are converted with the heads behind their dimensions",
        "heads-permuted",
        _put_heads_last,
        lambda *_: [Order(tuple(_HEADS_LAST.tolist()), 1)],
        equivalents=("axes-swapped", "weight-rows", "split-order", "weight-transposed"),
    ),
    "positions_early": Fault(
        "the table of positions comes from a checkpoint without the rows in front, up to that of "
        "padding: each position has the row of a later one",
        "row-shift",
        change_weight(
            "embeddings.positions.weight", lambda table: np.roll(table, -(PAD + 1), axis=0)
        ),
        lambda *_: [Anywhere("(?i)order|row|shift|roll|permut|offset|position")],
        equivalents=("weight-rows", "position-offset"),
    ),
    "words_averaged": Fault(
        "the loss of words is the mean over all tokens, of which those that are not masked have 0, "
        "not over masked ones",
        "loss-reduction",
        change_model(are_words_averaged=True),
        lambda *_: [Ratio(sum(MASKED) / (BATCH * LENGTH))],
        equivalents=(
            "constant-factor",
            "scale",
            "loss-weight",
            "pooling",
            "ignore-index",
            "mask-missing",
            "argument",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("global_unscaled", "mindspore"),
    ("values_late", "mindspore"),
    ("global_values_local", "mindspore"),
    ("late_labels", "mindspore"),
    ("next_keys_stopped", "mindspore"),
    ("global_gradient", "mindspore"),
    ("global_added", "pytorch"),
    ("slots_averaged", "pytorch"),
    ("globals_in_windows", "pytorch"),
    ("padding_counted", "pytorch"),
    ("slot_sum_detached", "pytorch"),
    ("heads_last", "pytorch"),
    ("positions_early", "mindspore"),
    ("words_averaged", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "dense": ("", "dense"),
    "blocks": ("blocks", ""),
    "both": ("blocks", "dense"),
}
