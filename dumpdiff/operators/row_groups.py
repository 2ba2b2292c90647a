"""Rows that are reduced group by group: bags of embeddings, messages that arrive at a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats, Ints
from .call import Call, Interpretations

#: Reductions of the rows of a group. ``root`` divides the sum by the root of their number.
REDUCTIONS = ("sum", "mean", "max", "min", "root")
#: The number of the row of an embedding that stands for padding, in nearly every model.
_PADDING_NUMBER = 0


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows (n_rows, width), and the number of the group of each row."""

    rows: Floats
    groups: Ints  #: (n_rows,), from 0 to ``n_groups`` - 1
    n_groups: int

    def count(self, is_counted: Flags) -> Floats:
        """Return the number of counted rows of each group, (n_groups, 1)."""
        weights = is_counted.astype(np.float64)
        counts = np.bincount(self.groups, weights=weights, minlength=self.n_groups)
        return np.asarray(counts[:, None], dtype=np.float64)

    def reduce(self, reduction: str, is_counted: Flags) -> Floats:
        """Return the reduction of the counted rows of each group, (n_groups, width).

        It is 0 for a group without a row, as in both frameworks.
        """
        groups, rows = self.groups[is_counted], self.rows[is_counted]
        shape = (self.n_groups, self.rows.shape[1])
        if reduction in ("max", "min"):
            limit = -np.inf if reduction == "max" else np.inf
            extrema = np.full(shape, limit)
            update = np.maximum if reduction == "max" else np.minimum
            update.at(extrema, groups, rows)
            result: Floats = np.where(np.isfinite(extrema), extrema, 0.0)
            return result
        total = np.zeros(shape)
        np.add.at(total, groups, rows)
        counts = np.maximum(self.count(is_counted), 1)
        if reduction == "mean":
            total /= counts
        elif reduction == "root":
            total /= np.sqrt(counts)
        return total


def list_bags(call: Call) -> Iterator[RowGroups]:
    """Yield the rows of embedding_bag(ids, table): ids are (bags, length), or cut by offsets."""
    for table in call.tensors:
        if table.dtype.kind != "f" or table.ndim != 2:
            continue
        indices = [array for array in call.tensors if array.dtype.kind in "iu"]
        if not indices or not indices[0].size or indices[0].max() >= len(table):
            return
        ids = indices[0]
        rows = table[ids.reshape(-1)].astype(np.float64)
        if ids.ndim == 2:
            groups = np.repeat(np.arange(len(ids)), ids.shape[1])
            yield RowGroups(rows, groups, len(ids))
        elif len(indices) > 1 and indices[1].ndim == 1:
            places = np.arange(ids.size)
            groups = np.searchsorted(indices[1], places, side="right") - 1
            n_groups = call.output_shape[0] if call.output_shape else len(indices[1])
            if groups.min() >= 0 and groups.max() < n_groups:
                yield RowGroups(rows, groups, n_groups)
        return


def compute_embedding_bag(call: Call) -> Interpretations:
    """Compute embedding_bag: its mode is recorded as a word, and padding may be left out."""
    ids = next((array for array in call.tensors if array.dtype.kind in "iu"), None)
    for bags in list_bags(call):
        everything = np.ones(len(bags.rows), dtype=bool)
        for reduction in ("mean", "sum", "max"):
            yield f"{reduction} of all rows", bags.reduce(reduction, everything)
            if ids is not None:
                is_counted = ids.reshape(-1) != _PADDING_NUMBER
                yield f"{reduction} without row 0", bags.reduce(reduction, is_counted)


def reduce_rows(call: Call) -> Interpretations:
    """Compute index_reduce or scatter_reduce: which reduction it is is recorded as a word."""
    for x, places, source in _list_scatters(call):
        counts = np.zeros_like(x)
        np.add.at(counts, places, np.ones_like(source))
        total = np.zeros_like(x)
        np.add.at(total, places, source)
        for name, update, limit in (("max", np.maximum, -np.inf), ("min", np.minimum, np.inf)):
            extrema = np.full_like(x, limit)
            update.at(extrema, places, source)
            yield f"{name}", np.where(counts > 0, extrema, x)
            yield f"{name} with its own value", update(extrema, x)
        yield "mean", np.where(counts > 0, total / np.maximum(counts, 1), x)
        yield "sum", np.where(counts > 0, total, x)
        yield "mean with its own value", (total + x) / (counts + 1)


def _list_scatters(call: Call) -> Iterator[tuple[Floats, tuple[AnyArray, ...], Floats]]:
    """Yield (x, places in x, what goes there) of a call with one tensor of indices."""
    floating = [array for array in call.tensors if array.dtype.kind == "f"]
    indices = [array for array in call.tensors if array.dtype.kind in "iu"]
    if len(floating) != 2 or len(indices) != 1 or not indices[0].size:
        return
    x, source = floating
    index = indices[0].astype(np.int64)
    axes = [axis % x.ndim for axis in call.list_axis_numbers(x.ndim)] or [0]
    axis = axes[0]
    if index.ndim == 1 and source.shape[axis] == index.size:
        places = [np.arange(length) for length in source.shape]
        places[axis] = index
        yield x, np.ix_(*places), source
    elif index.shape == source.shape:
        grid = list(np.indices(source.shape))
        grid[axis] = index
        yield x, tuple(grid), source
    elif source.shape == (*index.shape[:-1], *x.shape[index.shape[-1] :]):
        yield x, tuple(np.moveaxis(index, -1, 0)), source


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "embedding_bag": compute_embedding_bag,
    "scatter_reduce": reduce_rows,
}
