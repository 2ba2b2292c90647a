"""Values recorded shortly before another one that it is made of without arithmetic.

That is a rearrangement, a cast, a repetition or a chunk.

All values are tried at once, as long columns of pairs (value, recent value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import get_unit_roundoff
from .dataflow import Flow
from .passing_values import WINDOW

#: Relative difference of the norms of the same numbers, summed in another order.
SUMMATION_ERROR = 2e-6
#: Roundoffs of the narrower type by which the statistics of a cast may differ.
_CAST_ROUNDOFFS = 2
#: A chunk has at least this many elements; fewer share an extreme by chance ...
_MIN_CHUNK_SIZE = 8
#: ... and is at least this fraction of the whole.
_MAX_CHUNKS = 64
#: Values that are tried at once. Each has a few hundred recent ones, so the columns of pairs have a
#: few MB, which fit into the cache of a core.
_BLOCK_SIZE = 1024


@dataclass(frozen=True)
class RecentSource:
    """The earlier value that a value comes from."""

    value: int  #: class
    evidence: str  #: rearranged, cast, repeated, part; order if only the order says so


def find_recent_sources(
    flow: Flow, values: Sequence[int]
) -> tuple[dict[int, RecentSource], dict[int, RecentSource]]:
    """Return the sources of values by their statistics, and those by the order of execution.

    Recent are the computed values that ops of the same phase wrote or read shortly before the first
    consumer. A source by order is the latest of them.
    """
    by_statistics: dict[int, RecentSource] = {}
    by_order: dict[int, RecentSource] = {}
    columns = _Columns.from_flow(flow)
    for block, rows, sources in _iterate_recent_pairs(flow, values):
        has_equal_size = columns.sizes[block[rows]] == columns.sizes[sources]
        tests: tuple[tuple[str, Flags, _Test], ...] = (
            ("rearranged", has_equal_size, _flag_rearrangements),
            ("cast", has_equal_size, _flag_casts),
            ("repeated", ~has_equal_size, _flag_repetitions),
            ("part", ~has_equal_size, _flag_chunks),
        )
        for evidence, is_tested, flag_sources in tests:
            pairs = np.flatnonzero(is_tested)
            fits = flag_sources(columns, block[rows[pairs]], sources[pairs])
            _keep_first(by_statistics, evidence, block, rows[pairs[fits]], sources[pairs[fits]])
        _keep_first(by_order, "order", block, rows, sources)
    return by_statistics, by_order


def find_repeated_sources(flow: Flow, values: Sequence[int]) -> dict[int, int]:
    """Return the recent value that each value repeats whole, for those that repeat one."""
    repeated: dict[int, RecentSource] = {}
    columns = _Columns.from_flow(flow)
    for block, rows, sources in _iterate_recent_pairs(flow, values):
        fits = _flag_repetitions(columns, block[rows], sources)
        _keep_first(repeated, "repeated", block, rows[fits], sources[fits])
    return {value: source.value for value, source in repeated.items()}


def list_recent_values(flow: Flow, value: int) -> list[int]:
    """Return the computed values that ops wrote or read shortly before one is read, latest first.

    They are of the phase of the first op that reads it. Of one that no op reads, they are those
    before the call that returned it.
    """
    _, recent_values = _pair_with_recent_values(flow, np.array([value]))
    return list(dict.fromkeys(recent_values.tolist()))


def _keep_first(
    sources_of: dict[int, RecentSource], evidence: str, block: Ints, rows: Ints, sources: Ints
) -> None:
    """Add the first source of each value that has none yet; ``rows`` are those of the block."""
    first_rows, positions = np.unique(rows, return_index=True)
    first_pairs = zip(block[first_rows].tolist(), sources[positions].tolist(), strict=True)
    for value, source in first_pairs:
        sources_of.setdefault(value, RecentSource(source, evidence))


def _iterate_recent_pairs(flow: Flow, values: Sequence[int]) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (block of the values, rows of the block, recent values), see the next function."""
    for start in range(0, len(values), _BLOCK_SIZE):
        block = np.array(values[start : start + _BLOCK_SIZE])
        yield (block, *_pair_with_recent_values(flow, block))


def _pair_with_recent_values(flow: Flow, values: Ints) -> tuple[Ints, Ints]:
    """Return (row of ``values``, recent value) pairs, for each value the latest first."""
    ops, recorded_values = flow.latest_records
    phases = flow.phase_numbers
    consumers = flow.first_reads[values]
    consumers = np.where(consumers >= 0, consumers, flow.producers[values])
    # the ops are in descending order
    start = np.searchsorted(-ops, -(consumers - 1))
    counts = np.searchsorted(-ops, -(consumers - WINDOW)) - start
    rows = np.repeat(np.arange(len(values)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    records = start[rows] + offsets
    is_recent = phases[ops[records]] == phases[consumers[rows]]
    is_recent &= recorded_values[records] != values[rows]
    # a single number, such as a loss, is not what a tensor was computed from
    is_recent &= flow.sizes[recorded_values[records]] >= np.minimum(2, flow.sizes[values[rows]])
    return rows[is_recent], recorded_values[records[is_recent]]


@dataclass(frozen=True)
class _Columns:
    """Columns of the classes of a flow; (classes,) each."""

    sizes: Ints
    highs: Floats
    lows: Floats
    norms: Floats
    dtypes: Ints  #: a number for each dtype
    roundoffs: Floats

    @staticmethod
    def from_flow(flow: Flow) -> _Columns:
        dtypes, names = pd.factorize(flow.classes["dtype"].to_numpy())
        roundoffs = np.array([get_unit_roundoff(str(name)) for name in names], dtype=float)
        highs, lows = flow.classes["max"].to_numpy(), flow.classes["min"].to_numpy()
        return _Columns(flow.sizes, highs, lows, flow.norms, dtypes, roundoffs[dtypes])


#: (columns, values, sources) -> which sources fit
_Test = Callable[[_Columns, Ints, Ints], Flags]


def _flag_rearrangements(columns: _Columns, values: Ints, sources: Ints) -> Flags:
    """Return where norms are equal, of equal sizes: other order or signs, as of rotary embeddings.

    An infinite norm says nothing.
    """
    norms, source_norms = columns.norms[values], columns.norms[sources]
    with np.errstate(invalid="ignore"):  # a difference of infinities
        is_close = np.abs(norms - source_norms) <= SUMMATION_ERROR * source_norms
    flags: Flags = is_close & (norms > 0) & np.isfinite(norms) & np.isfinite(source_norms)
    return flags


def _flag_casts(columns: _Columns, values: Ints, sources: Ints) -> Flags:
    """Return where types differ and statistics agree to the roundoff of the narrower type.

    The sizes are equal.
    """
    fits = np.zeros(len(values), dtype=bool)
    pairs = np.flatnonzero(columns.dtypes[values] != columns.dtypes[sources])
    values, sources = values[pairs], sources[pairs]
    roundoffs = np.maximum(columns.roundoffs[values], columns.roundoffs[sources])
    slack = _CAST_ROUNDOFFS * roundoffs
    is_cast = slack > 0
    for column in (columns.highs, columns.lows, columns.norms):
        numbers, source_numbers = column[values], column[sources]
        is_known = np.isfinite(numbers) & np.isfinite(source_numbers)
        scale = np.maximum(np.abs(numbers), np.abs(source_numbers))
        with np.errstate(invalid="ignore"):
            is_cast &= ~is_known | (np.abs(numbers - source_numbers) <= slack * scale)
    fits[pairs] = is_cast
    return fits


def _flag_repetitions(columns: _Columns, values: Ints, sources: Ints) -> Flags:
    """Return where the value may be the source several times, as one head for each of a group.

    The extremes are equal, and n times the numbers have sqrt(n) times their norm.
    """
    n_copies, remainders = np.divmod(columns.sizes[values], np.maximum(columns.sizes[sources], 1))
    fits: Flags = (n_copies > 1) & (remainders == 0) & (columns.sizes[sources] > 1)
    highs, lows = columns.highs, columns.lows
    fits &= (highs[values] == highs[sources]) & (lows[values] == lows[sources])
    fits &= highs[values] > lows[values]
    norms = np.sqrt(np.maximum(n_copies, 1)) * columns.norms[sources]
    with np.errstate(invalid="ignore"):  # a difference of infinities
        fits &= np.abs(columns.norms[values] - norms) <= SUMMATION_ERROR * norms
    fits &= np.isfinite(norms)
    return fits


def _flag_chunks(columns: _Columns, values: Ints, sources: Ints) -> Flags:
    """Return where the value may be a chunk of the source.

    A chunk is a whole fraction of the elements with a smaller norm and extremes within those of the
    source, at least one of them equal.
    """
    sizes, source_sizes = columns.sizes[values], columns.sizes[sources]
    n_chunks, remainders = np.divmod(source_sizes, np.maximum(sizes, 1))
    fits: Flags = (sizes >= _MIN_CHUNK_SIZE) & (remainders == 0)
    fits &= (n_chunks > 1) & (n_chunks <= _MAX_CHUNKS)
    highs, source_highs = columns.highs[values], columns.highs[sources]
    lows, source_lows = columns.lows[values], columns.lows[sources]
    fits &= (highs <= source_highs) & (lows >= source_lows)
    fits &= (highs == source_highs) | (lows == source_lows)
    fits &= columns.norms[values] < columns.norms[sources]
    return fits
