"""Statistics of every tensor: as recorded, else from the whole tensor, streamed in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Flags, Ints
from ..model.errors import DumpError
from ..model.threads import each
from ..model.trace import Problem, Trace

STATISTICS = ("max", "min", "mean", "norm")
_BLOCK = (
    1 << 16
)  # elements: 256 KiB of float32, so that all four reductions of a block run in cache


def complete_statistics(
    trace: Trace, progress: Callable[[float], None] | None = None
) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """The tensor table with max, min, mean, norm, size and nonfinite filled in from whole tensors where missing.

    An input whose producer is recorded and has the same size is not read again: the reader verified that both
    hold the same bytes. Unreadable files become problems and keep NaN.
    """
    tensors = trace.tensors.copy()
    missing = (tensors["norm"].isna() & tensors["max"].isna() & (tensors["file"] != "")).to_numpy()
    copies = _copies(tensors, missing)
    todo = np.flatnonzero(missing & (copies < 0))
    columns = {
        name: tensors[name].to_numpy(copy=True) for name in (*STATISTICS, "size", "nonfinite")
    }
    problems: list[Problem] = []

    def measure(row: int) -> tuple[int, tuple[float, float, float, float, int] | str, int]:
        try:
            array = trace.array(row)
        except (DumpError, OSError, ValueError) as error:
            return row, str(error), 0
        return row, compute_statistics(array), array.size

    for done, (row, values, size) in enumerate(
        each(measure, todo.tolist(), columns["size"][todo].tolist())
    ):
        if isinstance(values, str):
            problems.append(Problem(tensors["file"].iat[row], values))
            continue
        for name, value in zip((*STATISTICS, "nonfinite"), values, strict=True):
            columns[name][row] = value
        columns["size"][row] = size
        if progress and done % 256 == 0:
            progress(done / len(todo))
    copied = np.flatnonzero(missing & (copies >= 0))
    for name, column in columns.items():
        column[copied] = column[copies[copied]]
        tensors[name] = column
    known = tensors["max"].notna() & tensors["min"].notna()
    finite = np.isfinite(tensors["max"]) & np.isfinite(tensors["min"])
    unknown = tensors["nonfinite"] < 0
    tensors.loc[unknown & known, "nonfinite"] = (~finite[unknown & known]).astype("int8")
    return tensors, tuple(problems)


def _copies(tensors: pd.DataFrame, missing: Flags) -> Ints:
    """For each missing row the row whose statistics it shares, -1 if it must be read itself."""
    producer = tensors["producer"].to_numpy()
    size = tensors["size"].to_numpy()
    has = producer >= 0
    source = np.where(has, producer, 0)
    same = (
        has & missing & (size[source] == size) & (size >= 0) & tensors["trusted"].to_numpy()[source]
    )
    same &= ~has[source]  # outputs have no producer: one step is enough
    return np.where(same, producer, -1)


def compute_statistics(array: AnyArray) -> tuple[float, float, float, float, int]:
    """(max, min, mean, L2 norm, 1 if any element is NaN or Inf else 0) of an array of any shape and dtype.

    NaN is sticky and Inf takes part, as in MindSpore >= 2.3 and PyTorch. Sums are pairwise in the
    array's precision (at least float32) within blocks of 65,536 elements, and in float64 between blocks.
    Complex arrays are taken by magnitude. An empty array gives NaN for all and 0.
    """
    flat = _flat(array)
    if flat.size == 0:
        return (np.nan, np.nan, np.nan, np.nan, 0)
    high, low, total, squares = -np.inf, np.inf, 0.0, 0.0
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            if np.iscomplexobj(block):
                block = np.abs(block)
            if block.dtype not in (np.float32, np.float64):
                block = block.astype(np.float32 if block.dtype == np.float16 else np.float64)
            high = np.fmax(high, block.max()) if not np.isnan(high) else high
            high = np.nan if np.isnan(block.max()) else high
            low = min(low, block.min())
            total += float(block.sum())
            squares += float(np.dot(block, block))
        if (
            not (np.isfinite(squares) and np.isfinite(total))
            and np.isfinite(high)
            and np.isfinite(low)
        ):
            wide = (
                np.abs(flat).astype(np.float64)
                if np.iscomplexobj(flat)
                else flat.astype(np.float64)
            )
            squares, total = float(np.dot(wide, wide)), float(wide.sum())
    if np.isnan(high):
        return (np.nan, np.nan, np.nan, np.nan, 1)
    nonfinite = int(not (np.isfinite(high) and np.isfinite(low)))
    return (float(high), float(low), total / flat.size, float(np.sqrt(squares)), nonfinite)


def _flat(array: AnyArray) -> AnyArray:
    return (
        array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)
    )
