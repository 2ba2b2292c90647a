"""Value classes: tensors of one side that hold the same numbers, whatever their shape.

Reshape, transpose, copy, residual reuse and parameter reads all vanish into one class, so that two
frameworks with other layout operators still have the same classes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import MASK, is_integer

_SAME = 1e-6  # mean and norm of the same numbers in another order: float32 summation, or 6 printed digits
_LOW_PRECISION = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}  # where mean and norm were summed in the dtype itself


def count_evidence(tensors: pd.DataFrame) -> Ints:
    """How many of a tensor's recorded numbers say something: 0 (nothing: all ones, a mask, a shape) to 4.

    A number says nothing if it is missing, 0, +-1, not finite, a masking constant (dtypes.MASK) or, for tensors of one
    repeated value, a copy of another number; numbers a person would type (few digits) count for nothing either.
    """
    values = tensors[["max", "min", "mean", "norm"]].to_numpy(dtype=float)
    with np.errstate(all="ignore"):
        telling = np.isfinite(values) & (np.abs(values) < MASK) & ~_typed(values)
        constant = values[:, 0] == values[:, 1]
    telling[constant, 1:] = False
    telling[tensors["size"].to_numpy() < 4, 2:] = False
    counts: Ints = telling.sum(axis=1)
    return counts


def _typed(values: Floats) -> Flags:
    """Numbers with at most two significant digits, the kind that stands in source code."""
    with np.errstate(all="ignore"):
        magnitude = 10.0 ** (np.floor(np.log10(np.abs(values))) - 1)
        scaled = values / magnitude
        typed: Flags = (values == 0) | (np.abs(scaled - np.round(scaled)) < 1e-5)
    return typed


def flag_immediates(tensors: pd.DataFrame) -> Flags:
    """(rows,) true for scalars, shapes, axes and the like: constants of fewer than 8 elements, or of integers."""
    small = (tensors["size"].to_numpy() < 8) | tensors["dtype"].map(is_integer).to_numpy(dtype=bool)
    flags: Flags = tensors["constant"].to_numpy() & small
    return flags


def assign_classes(tensors: pd.DataFrame, low_precision: bool, updates: Flags | None = None) -> Ints:
    """The value class of each tensor, 0..n-1 in order of first appearance; -1 for untrusted tensors and immediates.

    ``tensors`` has complete statistics; ``low_precision`` says that mean and norm were computed in the tensor's dtype;
    ``updates`` (rows,) marks what optimizers read and write. Two tensors are one class if a recorded edge joins them,
    if their checksums are equal, or if element count, max and min are identical and mean and norm agree to summation
    order (exactly, for updates: a step may change less). Tensors that say too little (all ones, zeros) are only
    joined to the latest output that looks the same.
    """
    rows = len(tensors)
    usable = tensors["trusted"].to_numpy() & ~flag_immediates(tensors)
    joins = [_edges(tensors, usable)]
    telling = count_evidence(tensors) >= 2
    exact = np.zeros(rows, dtype=bool) if updates is None else updates
    joins.append(_equal(tensors, usable & telling, low_precision, exact))
    joins.append(_hashes(tensors, usable))
    joins.append(_latest_output(tensors, usable & ~telling))
    left, right = np.concatenate(joins, axis=1)
    label = _components(left, right, rows)
    result = np.full(rows, -1)
    result[usable] = np.unique(label[usable], return_inverse=True)[1]
    return result


def _components(left: Ints, right: Ints, rows: int) -> Ints:
    """(rows,) the smallest member of each row's connected component; edges join ``left`` to ``right``.

    Hooking and pointer jumping (Shiloach and Vishkin, J. Algorithms 3, 1982), here because importing scipy's own
    takes a tenth of the time of a small comparison.
    """
    label = np.arange(rows)
    while True:
        hooked = label.copy()
        low = np.minimum(label[left], label[right])
        np.minimum.at(hooked, label[left], low)
        np.minimum.at(hooked, label[right], low)
        while not np.array_equal(hooked, hooked[hooked]):
            hooked = hooked[hooked]
        if np.array_equal(hooked, label):
            return label
        label = hooked


def _edges(tensors: pd.DataFrame, usable: Flags) -> Ints:
    producer = tensors["producer"].to_numpy()
    read = np.flatnonzero((producer >= 0) & usable)
    read = read[usable[producer[read]]]
    return np.stack([read, producer[read]])


def _equal(tensors: pd.DataFrame, chosen: Flags, low_precision: bool, exact: Flags) -> Ints:
    rows = np.flatnonzero(chosen)
    table = tensors.iloc[rows]
    size, high, low, mean, norm = (
        table[name].to_numpy(dtype=float) for name in ("size", "max", "min", "mean", "norm")
    )
    exactness = np.full(len(rows), _SAME)
    if low_precision:
        exactness = np.maximum(
            exactness, table["dtype"].map(_LOW_PRECISION).fillna(0.0).to_numpy(dtype=float)
        )
    exactness[exact[rows]] = 0.0
    order = np.lexsort((np.nan_to_num(norm), np.nan_to_num(low), np.nan_to_num(high), size))
    a, b = order[:-1], order[1:]
    with np.errstate(all="ignore"):
        slack = np.where(
            (exactness[a] > 0) & (exactness[b] > 0), np.maximum(exactness[a], exactness[b]), 0.0
        )
        scale = np.maximum(np.abs(high), np.abs(low))
        same = (size[a] == size[b]) & _both(high, a, b, 0.0) & _both(low, a, b, 0.0)
        same &= _both(norm, a, b, slack * np.abs(norm[a])) & _both(mean, a, b, slack * scale[a])
    return np.stack([rows[a[same]], rows[b[same]]])


def _both(values: Floats, a: Ints, b: Ints, slack: Floats | float) -> Flags:
    """Agree within the slack, or at least one was not recorded."""
    left, right = values[a], values[b]
    agree: Flags = (
        (np.abs(left - right) <= slack) | (left == right) | np.isnan(left) | np.isnan(right)
    )
    return agree


def _hashes(tensors: pd.DataFrame, usable: Flags) -> Ints:
    rows = np.flatnonzero(
        usable & (tensors["hash"] != "").to_numpy() & (tensors["size"].to_numpy() > 1)
    )
    keys = pd.Series(
        list(zip(tensors["size"].to_numpy()[rows], tensors["hash"].to_numpy()[rows], strict=True))
    )
    codes = pd.factorize(keys)[0] if len(rows) else np.empty(0, dtype=int)
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    return np.stack([rows[order[:-1]][same], rows[order[1:]][same]])


def _latest_output(tensors: pd.DataFrame, chosen: Flags) -> Ints:
    """An input that says little and whose producer is unknown is the latest output that looks the same."""
    rows = np.flatnonzero(
        chosen & (tensors["max"].notna() | (tensors["nonfinite"] == 1)).to_numpy()
    )
    table = tensors.iloc[rows]
    keys = [
        np.nan_to_num(table[name].to_numpy(dtype=float), nan=9.87e300)
        for name in ("size", "max", "min", "norm")
    ]
    order = np.lexsort((rows, *keys))
    repeats = np.ones(len(rows), dtype=bool)
    for key in keys:
        repeats[1:] &= key[order[1:]] == key[order[:-1]]
    repeats[:1] = False
    group = np.cumsum(~repeats)
    is_output = (table["role"].to_numpy()[order] == "output") | (
        table["producer"].to_numpy()[order] >= 0
    )
    position = np.where(table["role"].to_numpy()[order] == "output", np.arange(len(rows)), -1)
    offset = group * (len(rows) + 1)
    latest = np.maximum.accumulate(position + offset) - offset
    linked = ~is_output & (latest >= 0)
    return np.stack([rows[order[linked]], rows[order[latest[linked]]]])
