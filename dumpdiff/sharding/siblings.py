"""Sibling ranks side by side: which op and which tensor of each rank corresponds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats, Ints

#: Columns of the tensor table that are compared between siblings.
_STATISTICS = ("max", "min", "mean", "norm")
#: Relative difference of statistics of the same numbers in two processes, which may have reduced
#: them in another order (float32 sums of some thousand elements; measured up to 3e-6).
_EQUALITY = 1e-5

#: Kind, scope, phase, and the slots with their numbers of axes.
_Call = tuple[str, str, str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Siblings:
    """Ranks that make the same calls: row by row the op and the tensor of each rank."""

    names: tuple[str, ...]  #: "rank 3", "micro-batch 1 of rank 0"
    flows: tuple[Flow, ...]
    ops: Ints  #: (ops, ranks) id of the op, -1 if the rank lacks it
    rows: Ints  #: (tensors, ranks) id of the tensor, -1 if the rank lacks it
    row_ops: Ints  #: (tensors,) the row of ``ops`` that a tensor belongs to
    n_dropped: int = 0  #: ops of single ranks that correspond to none of the base rank

    @property
    def n_ranks(self) -> int:
        """Number of ranks side by side."""
        return len(self.flows)

    @cached_property
    def is_present(self) -> Flags:
        """(tensors, ranks) whether the rank has the tensor."""
        flags: Flags = self.rows >= 0
        return flags

    @cached_property
    def bases(self) -> Ints:
        """(tensors,) the first rank that has the tensor."""
        bases: Ints = np.argmax(self.is_present, axis=1)
        return bases

    @cached_property
    def statistics(self) -> Floats:
        """(tensors, ranks, 4) max, min, mean and norm; NaN where not recorded."""
        return np.stack([self.collect(name, np.nan) for name in _STATISTICS], axis=2)

    @cached_property
    def sizes(self) -> Ints:
        """(tensors, ranks) number of elements, -1 if unknown."""
        sizes: Ints = self.collect("size", -1)
        return sizes

    def collect(self, name: str, missing: float) -> AnyArray:
        """Return (tensors, ranks) a numeric column of the tensor tables."""
        columns = []
        for rank, flow in enumerate(self.flows):
            values = flow.tensors[name].to_numpy()
            column = values[np.maximum(self.rows[:, rank], 0)]
            columns.append(np.where(self.is_present[:, rank], column, missing))
        return np.stack(columns, axis=1)

    def collect_base(self, name: str) -> AnyArray:
        """Return (tensors,) a column of the tensor tables, of the first rank that has each."""
        values = np.empty(len(self.rows), dtype=object)
        for rank, flow in enumerate(self.flows):
            is_base = (self.bases == rank) & self.is_present[:, rank]
            values[is_base] = flow.tensors[name].to_numpy()[self.rows[is_base, rank]]
        return values

    @cached_property
    def labels(self) -> Ints:
        """(tensors, ranks) the first rank that has the same numbers; -1 where a rank lacks it.

        Equal are shape, extremes, mean and norm, the last two up to the order of summation.
        """
        shapes = self._shape_codes
        labels = np.where(self.is_present, np.arange(self.n_ranks), -1)
        for rank in range(1, self.n_ranks):
            for earlier in range(rank - 1, -1, -1):
                is_equal = self.is_present[:, rank] & self.is_present[:, earlier]
                is_equal &= shapes[:, rank] == shapes[:, earlier]
                is_equal &= _flag_equal(self.statistics[:, rank], self.statistics[:, earlier])
                labels[is_equal, rank] = labels[is_equal, earlier]
        return labels

    @cached_property
    def _shape_codes(self) -> Ints:
        codes: dict[object, int] = {}
        columns = []
        for rank, flow in enumerate(self.flows):
            shapes = flow.tensors["shape"].tolist()
            column = [
                codes.setdefault(shapes[row], len(codes)) if row >= 0 else -1
                for row in self.rows[:, rank].tolist()
            ]
            columns.append(column)
        return np.array(columns).T


def _flag_equal(first: Floats, second: Floats) -> Flags:
    """Return (rows,) whether four statistics agree; a number that is missing on both sides does."""
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(first[:, :2]).max(axis=1), 1e-300)[:, None]
        scale = np.where(np.isfinite(scale), scale, 1.0)
        distances = np.abs(first - second)
        limits = _EQUALITY * np.concatenate([scale, scale, scale, np.abs(first[:, 3:])], axis=1)
        is_equal = (distances <= limits) | (first == second)
    is_equal |= np.isnan(first) & np.isnan(second)
    flags: Flags = is_equal.all(axis=1)
    return flags


def align_siblings(flows: Sequence[Flow], names: Sequence[str]) -> Siblings:
    """Put ranks that make the same calls side by side.

    The calls correspond in order. Where a rank makes others, the longest equal stretches of kind,
    module and phase do.
    """
    base = max(range(len(flows)), key=lambda rank: (len(flows[rank].trace.ops), -rank))
    calls = [_list_calls(flow) for flow in flows]
    columns = [_align_calls(calls[base], rank_calls) for rank_calls in calls]
    ops = np.stack(columns, axis=1)
    n_dropped = sum(len(rank_calls) for rank_calls in calls) - int((ops >= 0).sum())
    rows, row_ops = _align_slots(flows, ops, base)
    return Siblings(tuple(names), tuple(flows), ops, rows, row_ops, n_dropped)


def _list_calls(flow: Flow) -> list[_Call]:
    """Return, for each op, what its siblings have in common with it."""
    trace = flow.trace
    slots: list[list[tuple[str, int]]] = [[] for _ in range(len(trace.ops))]
    table = trace.tensors
    columns = (table[name].tolist() for name in ("op", "slot", "shape"))
    for op, slot, shape in zip(*columns, strict=True):
        slots[op].append((slot, -1 if shape is None else len(shape)))
    names = (trace.ops[name].tolist() for name in ("kind", "scope", "phase"))
    return list(zip(*names, map(tuple, slots), strict=True))


def _align_calls(base_calls: list[_Call], calls: list[_Call]) -> Ints:
    """Return (base calls,) the corresponding call, -1 if there is none."""
    if calls == base_calls:
        return np.arange(len(calls))
    aligned = np.full(len(base_calls), -1)
    matcher = SequenceMatcher(None, base_calls, calls, autojunk=False)
    for block in matcher.get_matching_blocks():
        aligned[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
    return aligned


def _align_slots(flows: Sequence[Flow], ops: Ints, base: int) -> tuple[Ints, Ints]:
    """Return (tensors, ranks) the tensor of each rank, and (tensors,) the row of ``ops``."""
    base_keys = _list_slots(flows[base], ops[:, base])
    columns = []
    for rank, flow in enumerate(flows):
        keys = base_keys if rank == base else _list_slots(flow, ops[:, rank])
        if keys == base_keys:
            tensor_ids = {key: row for row, key in enumerate(keys) if key[0] >= 0}
        else:
            tensor_ids = {key: row for row, key in reversed(list(enumerate(keys))) if key[0] >= 0}
        columns.append([tensor_ids.get(key, -1) for key in base_keys])
    return np.array(columns).T.reshape(len(base_keys), len(flows)), np.array(
        [key[0] for key in base_keys], dtype=int
    )


def _list_slots(flow: Flow, rank_ops: Ints) -> list[tuple[int, str, str]]:
    """Return, for each tensor, the row of its op among the siblings, its slot and slot kind."""
    row_of_op = np.full(len(flow.trace.ops), -1)
    present = np.flatnonzero(rank_ops >= 0)
    row_of_op[rank_ops[present]] = present
    op_rows = row_of_op[flow.tensors["op"].to_numpy()].tolist()
    slots = flow.tensors["slot"].tolist()
    slot_kinds = flow.tensors["slot_kind"].tolist()
    return list(zip(op_rows, slots, slot_kinds, strict=True))
