"""Statistics of every tensor: as recorded, else computed from the whole tensor in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Flags, Ints
from ..model.errors import DumpError
from ..model.scaled_sums import ScaledNumber, is_reliable, sum_squares, sum_values
from ..model.threads import map_in_threads
from ..model.trace import Problem, Trace

STATISTICS = ("max", "min", "mean", "norm")
#: Elements of a block: 256 KiB of float32, so that all four reductions of a block run in cache.
_BLOCK = 1 << 16
#: Progress is reported after this many tensors.
_PROGRESS_STEP = 256


def complete_statistics(
    trace: Trace, progress: Callable[[float], None] | None = None
) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """Return the tensor table with missing statistics computed from whole tensors, and problems.

    Filled columns are max, min, mean, norm, size and nonfinite. An input whose producer is recorded
    with the same size is not read again: the reader verified that both hold the same bytes.
    Unreadable files become problems and their tensors keep NaN.
    """
    tensors = trace.tensors.copy(deep=False)  # columns are replaced, never written to
    lacks_numbers = tensors["norm"].isna() & tensors["max"].isna()
    is_missing = (lacks_numbers & (tensors["file"] != "")).to_numpy()
    if not is_missing.any():
        return _complete_nonfinite(trace.tensors), ()
    copies = _find_copies(tensors, is_missing)
    rows_to_read = np.flatnonzero(is_missing & (copies < 0))
    names = (*STATISTICS, "size", "nonfinite")
    columns = {name: tensors[name].to_numpy(copy=True) for name in names}
    problems: list[Problem] = []

    def measure(row: int) -> tuple[int, tuple[float, float, float, float, int] | str, int]:
        try:
            array = trace.array(row)
        except (DumpError, OSError, ValueError) as error:
            return row, str(error), 0
        return row, compute_statistics(array), array.size

    sizes_to_read = columns["size"][rows_to_read].tolist()
    measured_rows = map_in_threads(measure, rows_to_read.tolist(), sizes_to_read)
    for n_measured, (row, numbers, size) in enumerate(measured_rows):
        if isinstance(numbers, str):
            file, op = tensors["file"].iat[row], int(tensors["op"].iat[row])
            name = trace.ops["name"].iat[op]
            problems.append(Problem(file, numbers, op=name, weakens=True))
            continue
        for name, number in zip((*STATISTICS, "nonfinite"), numbers, strict=True):
            columns[name][row] = number
        columns["size"][row] = size
        if progress and n_measured % _PROGRESS_STEP == 0:
            progress(n_measured / len(rows_to_read))
    copied_rows = np.flatnonzero(is_missing & (copies >= 0))
    for name, column in columns.items():
        column[copied_rows] = column[copies[copied_rows]]
        tensors[name] = column
    return _complete_nonfinite(tensors), tuple(problems)


def _complete_nonfinite(tensors: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the column nonfinite set from the extremes where it is unknown."""
    highs, lows = tensors["max"].to_numpy(), tensors["min"].to_numpy()
    nonfinite = tensors["nonfinite"].to_numpy()
    is_open = (nonfinite < 0) & ~np.isnan(highs) & ~np.isnan(lows)
    if not is_open.any():
        return tensors
    is_infinite = ~(np.isfinite(highs) & np.isfinite(lows))
    completed = np.where(is_open, is_infinite, nonfinite).astype(np.int8)
    tensors = tensors.copy(deep=False)
    tensors["nonfinite"] = completed
    return tensors


def _find_copies(tensors: pd.DataFrame, is_missing: Flags) -> Ints:
    """Return for each missing row the row whose statistics it shares, -1 if it must be read."""
    producers = tensors["source_tensor"].to_numpy()
    sizes = tensors["size"].to_numpy()
    has_producer = producers >= 0
    sources = np.where(has_producer, producers, 0)
    is_copy = has_producer & is_missing & (sizes[sources] == sizes) & (sizes >= 0)
    is_copy &= tensors["trusted"].to_numpy()[sources]
    is_copy &= ~has_producer[sources]  # outputs have no producer, so one step is enough
    return np.where(is_copy, producers, -1)


def compute_statistics(array: AnyArray) -> tuple[float, float, float, float, int]:
    """Return (max, min, mean, L2 norm, 1 if any element is NaN or Inf else 0) of any array.

    One NaN makes all four NaN and Inf counts as a number, as in MindSpore >= 2.3 and PyTorch. The
    numbers are right for any finite input: within blocks of n = 65,536 elements sums are formed in
    float32 for float32 and narrower types, else in float64, and between blocks in float64. With
    the unit roundoff u of that type the norm errs relatively by at most (n + 2) u / 2, in whatever
    order its sum is formed, and the mean by at most 32 u times the mean magnitude, and 2**-53 more
    for each block, because sums within blocks are pairwise (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., sections 3.1 and 4.2). Complex arrays are taken by magnitude. An
    empty array gives four NaN and 0.
    """
    flat = _flatten(array)
    if flat.size == 0:
        return (np.nan, np.nan, np.nan, np.nan, 0)
    high, low, plain_sum, plain_squares = -np.inf, np.inf, 0.0, 0.0
    scaled_sum, scaled_squares = ScaledNumber(), ScaledNumber()
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            block = _convert_block(flat[start : start + _BLOCK])
            high = np.maximum(high, block.max())
            low = min(low, block.min())
            total, squares = float(block.sum()), float(np.dot(block, block))
            # by Cauchy-Schwarz a plain sum is safe, too, where that of the squares is
            if is_reliable(squares, block.dtype.type):
                plain_sum += total
                plain_squares += squares
            elif squares != 0 or block.any():
                wide = block.astype(np.float64, copy=False)
                scaled_sum += sum_values(wide)
                scaled_squares += sum_squares(wide)
    if np.isnan(high):
        return (np.nan, np.nan, np.nan, np.nan, 1)
    is_finite = np.isfinite(high) and np.isfinite(low)
    if np.iscomplexobj(flat) and not is_finite:
        is_finite = bool(np.isfinite(flat).all())  # a magnitude may exceed the largest number
    norm = (ScaledNumber(plain_squares) + scaled_squares).compute_root().to_float()
    mean = (ScaledNumber(plain_sum) + scaled_sum) / ScaledNumber(flat.size)
    return (float(high), float(low), mean.to_float(), norm, int(not is_finite))


def _convert_block(block: AnyArray) -> AnyArray:
    """Return the block in float32 or float64; magnitudes of complex numbers."""
    if block.dtype.kind == "c":
        magnitudes: AnyArray = np.abs(block.astype(np.complex128, copy=False))
        return magnitudes
    if block.dtype in (np.float32, np.float64):
        return block
    return block.astype(np.float32 if block.dtype == np.float16 else np.float64)


def _flatten(array: AnyArray) -> AnyArray:
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return contiguous.reshape(-1)


def choose_common_norm(traces: Sequence[Trace]) -> tuple[list[Trace], str]:
    """Return traces whose column ``norm`` is of one kind, and a remark if it is the L1 norm.

    PyTorch's DebugMode writes L1 norms and no others. The relative difference of two L1 norms is
    at most ||t - r||_1 / ||r||_1, as that of two L2 norms is at most the relative L2 error. So
    where one trace has no L2 norm and all have L1 norms, these are compared in their place.
    """
    has_l1 = all(trace.tensors["l1"].notna().any() for trace in traces)
    if not has_l1 or all(_has_l2_norms(trace.tensors) for trace in traces):
        return list(traces), ""
    replaced = []
    for trace in traces:
        tensors = trace.tensors
        norms = tensors["norm"].where(tensors["constant"], tensors["l1"])
        replaced.append(replace(trace, tensors=tensors.assign(norm=norms)))
    return replaced, "norms are L1 norms: one of the dumps has no others"


def _has_l2_norms(tensors: pd.DataFrame) -> bool:
    return bool(tensors.loc[~tensors["constant"], "norm"].notna().any())
