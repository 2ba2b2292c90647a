"""Values that no recorded op produced, and that are another value without a part of one axis.

A language model's loss reads ``logits[:, :-1]``, and no recorder shows the indexing. That may be
long after the logits were computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model.dtypes import is_floating
from ..model.trace import flag_words
from .dataflow import Flow

#: Values of equal extremes that are tried; more have them by chance, as 0 and 1.
_MAX_CANDIDATES = 8


def find_slices(flow: Flow, values: Sequence[int]) -> dict[int, int]:
    """Return value -> the value that it is a slice of, for those of ``values`` that are slices.

    A slice is shorter along one axis, and has both extremes of the other value and a smaller norm.
    Of several values it may be a slice of, it is one of the latest before its first consumer.
    """
    table = flow.classes[["max", "min", "size"]].assign(
        value=np.arange(len(flow.classes)), norm=flow.norms, producer=flow.producers
    )
    table = table[flag_words(flow.classes["dtype"], is_floating) & (table["max"] > table["min"])]
    slices = table[table["value"].isin(values)]
    wholes = table[(table["producer"] >= 0) & table["max"].isin(slices["max"])]
    is_rare = wholes.groupby(["max", "min"])["value"].transform("size") <= _MAX_CANDIDATES
    pairs = slices.merge(wholes[is_rare], on=["max", "min"], suffixes=("", "_whole"))
    is_slice = (pairs["size"] < pairs["size_whole"]) & (pairs["norm"] < pairs["norm_whole"])
    is_slice &= pairs["producer_whole"] < flow.first_reads[pairs["value"]]
    pairs = pairs[is_slice].sort_values("producer_whole", kind="stable")
    return {
        value: whole
        for value, whole in zip(pairs["value"].tolist(), pairs["value_whole"].tolist(), strict=True)
        if _differ_along_one_axis(flow.shapes[value], flow.shapes[whole])
    }


def _differ_along_one_axis(
    shape: tuple[int, ...] | None, other_shape: tuple[int, ...] | None
) -> bool:
    if not isinstance(shape, tuple) or not isinstance(other_shape, tuple):
        return False
    if len(shape) != len(other_shape):
        return False
    return sum(map(int.__ne__, shape, other_shape)) == 1
