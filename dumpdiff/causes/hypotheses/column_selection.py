"""Columns of a projection: a value was cut from other columns, or from them in another order.

Recorders leave out views: queries that a fused projection of queries, keys and values computes have
no recorded producer. The numbers show from which columns each side cut them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...model.arrays import AnyArray, Floats, Ints
from ..element_places import find_nearest_rows
from ..fault_case import FaultCase, Operand
from ..hypothesis import Candidate, Hypothesis

#: Elements of a column at least, and as many as are compared to find it among the others.
_MIN_ROWS, _MAX_ROWS = 4, 16
#: Kind whose results have channels before places: the last axis is no axis of columns.
_SEQUENCE_KIND = "convolution"
#: Places of numbers that occur more than once, at most: each is looked at.
_MAX_REPEATED = 40_000
#: Elements that the columns of both sides may have together, compared with each other.
_MAX_PRODUCTS = 1 << 24
#: Numbers that a sentence lists of columns that do not follow one another.
_N_LISTED = 3
#: Axes of heads: (batch, heads, tokens, size).
_HEAD_AXES = 4


@dataclass(frozen=True)
class _Selection:
    """Where the elements of a value come from: the same rows of several columns."""

    places: Ints  #: (columns, rows) places in the value, of the columns in its own order
    columns: Ints  #: (columns,)
    rows: Ints  #: (rows,)


def suggest_other_columns(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that both sides copied elements of one value, from columns of another order.

    The columns of the faithful side are found by equal numbers, because it copied them. Those of
    the faulty side are the nearest ones.
    """
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    for whole in case.operands:
        n_axes = len(whole.shape)
        if not whole.is_floating or n_axes < 2 or np.prod(whole.shape) < case.faithful.size:
            continue
        for axis in dict.fromkeys((n_axes - 1, 1)):  # the channels of an image are the second
            columns = np.moveaxis(whole.array, axis, -1).reshape(-1, whole.shape[axis])
            selection = _find_selection(columns, case.faithful)
            if selection is None:
                continue
            # all columns in another order, or steps of a sequence: that is more than a cut
            is_cut = len(selection.columns) < columns.shape[1]
            if is_cut and (axis == 1 or whole.kind != _SEQUENCE_KIND):
                yield from _describe_columns(case, whole, columns, selection)
            return


def _find_selection(columns: AnyArray, array: AnyArray) -> _Selection | None:
    """Return from which (rows, columns) an array was copied; None if it was not, or is unclear."""
    sources = _find_sources(columns, array)
    if sources is None:
        return None
    rows, numbers = np.divmod(sources, columns.shape[1])
    names, n_rows = np.unique(numbers, return_counts=True)
    if len(set(n_rows.tolist())) != 1 or n_rows[0] < _MIN_ROWS:
        return None
    places = np.lexsort((rows, numbers)).reshape(len(names), -1)
    if not (rows[places] == rows[places[0]]).all():
        return None
    by_place = np.argsort(places[:, 0])
    return _Selection(places[by_place], names[by_place], rows[places[0]])


def _find_sources(columns: AnyArray, array: AnyArray) -> Ints | None:
    """Return (elements,) the place of the equal number in a matrix; None if there is none.

    Some numbers occur twice: by chance, or because a batch repeats a token. Of these places the
    first one counts that is in a column of a number that occurs once, and is not taken.
    """
    values, flat = columns.reshape(-1), array.reshape(-1)
    order = np.argsort(values, kind="stable")
    sorted_values = values[order]
    first = np.searchsorted(sorted_values, flat)
    n_equal = np.searchsorted(sorted_values, flat, side="right") - first
    is_unique = n_equal == 1
    if not n_equal.all() or not is_unique.any() or n_equal[~is_unique].sum() > _MAX_REPEATED:
        return None
    sources: Ints = order[np.minimum(first, len(order) - 1)]
    numbers = set((sources[is_unique] % len(columns[0])).tolist())
    taken = set(sources[is_unique].tolist())
    for place in np.flatnonzero(~is_unique).tolist():
        equal_places = order[first[place] : first[place] + n_equal[place]].tolist()
        free_places = [
            source
            for source in equal_places
            if source % len(columns[0]) in numbers and source not in taken
        ]
        if not free_places:
            return None
        sources[place] = free_places[0]
        taken.add(free_places[0])
    return sources


def _describe_columns(
    case: FaultCase, whole: Operand, columns: AnyArray, selection: _Selection
) -> Iterator[Candidate]:
    """Yield the candidate that names the columns of both sides, if these differ."""
    transposed = columns[selection.rows].T
    faulty = case.faulty.reshape(-1)[selection.places]
    other_columns = _find_nearest(faulty, transposed)
    if other_columns is None or np.array_equal(other_columns, selection.columns):
        return
    width = case.faithful.shape[-1]
    if _are_in_equal_heads(other_columns, selection.columns, width):
        return  # pairs of a rotary embedding that are halves on one side: no other cut
    predicted, unchanged = np.empty((2, case.faithful.size))
    predicted[selection.places] = transposed[other_columns]
    unchanged[selection.places] = transposed[selection.columns]
    is_same_set = set(other_columns.tolist()) == set(selection.columns.tolist())
    has_heads = case.faithful.ndim == _HEAD_AXES
    first = int(np.flatnonzero(other_columns != selection.columns)[0])
    if len(selection.columns) % width == 0:
        first -= first % width
    run = slice(first, first + width)
    cause = "heads-permuted" if is_same_set and has_heads else "split-order"
    runs = other_columns[run], selection.columns[run]
    if len(runs[0]) == len(other_columns) and _are_windows(runs, columns.shape[1]):
        cause = "row-shift"
    yield Candidate(
        predicted.reshape(case.faithful.shape),
        f"{_format_columns(runs[0])} of {whole.name}",
        f"has {_format_columns(runs[1])} in their place",
        unchanged=unchanged.reshape(case.faithful.shape),
        cause=cause,
        is_evident=True,
    )


def _are_windows(runs: Sequence[Ints], n_columns: int) -> bool:
    """Return whether each of some columns are most of a value's, next to one another: a slice."""
    return all(
        2 * len(run) > n_columns and np.array_equal(run, np.arange(run[0], run[0] + len(run)))
        for run in runs
    )


def _are_in_equal_heads(columns: Ints, others: Ints, width: int) -> bool:
    """Return whether heads of ``width`` columns have the same columns, in whatever order.

    >>> _are_in_equal_heads(np.array([0, 2, 1, 3]), np.arange(4), 4)
    True
    >>> _are_in_equal_heads(np.array([0, 2, 1, 3]), np.arange(4), 2)
    False
    """
    if len(columns) % width:
        return False
    heads, other_heads = (np.sort(each.reshape(-1, width), axis=1) for each in (columns, others))
    return np.array_equal(heads, other_heads)


def _find_nearest(vectors: Floats, candidates: Floats) -> Ints | None:
    """Return per vector the nearest candidate; None if there are too many to compare."""
    step = -(-vectors.shape[1] // _MAX_ROWS)
    own, others = vectors[:, ::step], candidates[:, ::step]
    if len(own) * len(others) > _MAX_PRODUCTS:
        return None
    return find_nearest_rows(others, own)


def _format_columns(columns: Ints) -> str:
    """Return "columns 8 to 15", or "columns 0, 3, 6, ..."."""
    if np.array_equal(columns, np.arange(columns[0], columns[0] + len(columns))):
        return f"columns {columns[0]} to {columns[-1]}"
    listed = ", ".join(str(column) for column in columns[:_N_LISTED].tolist())
    return f"columns {listed}, ..."


HYPOTHESES = (Hypothesis("split-order", suggest_other_columns),)
