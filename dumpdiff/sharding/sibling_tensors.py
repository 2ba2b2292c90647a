"""Sibling ranks side by side: the op and the tensor of each rank, and what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats, Ints, Objects
from ..model.dtypes import get_unit_roundoff, is_discrete
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, Trace

#: Columns of the tensor table that are compared between siblings.
_STATISTICS = ("max", "min", "mean", "norm")
#: Relative difference of statistics of the same numbers in two processes, which may have reduced
#: them in another order (float32 sums of some thousand elements; measured up to 3e-6).
_EQUALITY = 1e-5
#: Relative difference of statistics up to which values of two runs are the same: correct runs of
#: float32 differ by 1e-6 to 1e-5; narrower dtypes by some of their roundoffs.
_MATCH_ERROR = 1e-4
_MATCH_ROUNDOFFS = 8


@dataclass(frozen=True)
class RankOps:
    """What the ranks call in the place of one op of a merged run, by rank."""

    names: dict[str, str]
    #: of a rank that lacks the op: its calls without siblings between the neighbors
    substitutes: dict[str, tuple[str, ...]]
    #: the rank whose values stand for what the op writes, '' if not those of one rank
    holder: str = ""


@dataclass(frozen=True)
class Siblings:
    """Ranks that make the same calls: row by row the op and the tensor of each rank."""

    names: tuple[str, ...]  #: "rank 3", "micro-batch 1 of rank 0"
    flows: tuple[Flow, ...]
    ops: Ints  #: (ops, ranks) id of the op, -1 if the rank lacks it
    rows: Ints  #: (tensors, ranks) id of the tensor, -1 if the rank lacks it
    row_ops: Ints  #: (tensors,) the row of ``ops`` that a tensor belongs to
    n_dropped: int = 0  #: ops of single ranks that correspond to none of the base rank
    #: micro-batches of one rank that follow each other; 1: the "ranks" are ranks
    n_batches: int = 1

    @cached_property
    def base(self) -> int:
        """The rank whose ops are the rows: the one with the most calls."""
        return int(np.argmax((self.ops >= 0).sum(axis=0)))

    @property
    def batch_groups(self) -> tuple[int, ...]:
        """Per "rank" the first micro-batch of the same rank."""
        return tuple(rank - rank % self.n_batches for rank in range(self.n_ranks))

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
    def phases(self) -> Objects:
        """(tensors,) the phase of the op, on the first rank that has the tensor."""
        return self._collect_of_ops([flow.trace.ops["phase"].to_numpy() for flow in self.flows])

    @cached_property
    def is_backward(self) -> Flags:
        """(tensors,) whether the op runs during the backward pass, whatever its recorded phase."""
        flags = [flag_backward_pass(flow.trace) for flow in self.flows]
        row_flags: Flags = self._collect_of_ops(flags).astype(bool)
        return row_flags

    @cached_property
    def may_be_gradient(self) -> Flags:
        """(tensors,) whether a value of the backward pass may be a gradient.

        A whole number that a user's own backward function takes is none; all that the backward
        record of a call has are gradients.
        """
        calls = [flow.trace.ops["forward"].to_numpy() for flow in self.flows]
        is_record: Flags = self._collect_of_ops(calls).astype(int) >= 0
        highs, lows = self.statistics[:, 0, 0], self.statistics[:, 0, 1]
        is_whole = (highs == lows) & (highs == np.rint(highs))
        flags: Flags = self.is_backward & (is_record | ~is_whole)
        return flags

    @cached_property
    def is_loose(self) -> Flags:
        """(tensors,) whether the op is outside of modules, and the tensor has no name."""
        parents = [flow.trace.ops["parent"].to_numpy() for flow in self.flows]
        flags: Flags = self._collect_of_ops(parents).astype(int) < 0
        for column in ("parameter", "gradient_of", "update_of"):
            flags &= self.collect_base(column) == ""
        return flags

    @cached_property
    def is_constant(self) -> Flags:
        """(tensors,) whether the record is an argument, not a tensor."""
        flags: Flags = self.collect_base("constant").astype(bool)
        return flags

    @cached_property
    def is_discrete(self) -> Flags:
        """(tensors,) whether the elements are integers or flags."""
        dtypes = self.collect_base("dtype")
        return np.array([is_discrete(dtype) for dtype in dtypes], dtype=bool)

    @cached_property
    def is_given_id(self) -> Flags:
        """(tensors,) integers of the forward pass that no op computes: tokens, positions."""
        flow = self.flows[self.base]
        producers = np.append(flow.producers, -1)
        rows = self.rows[:, self.base]
        flags: Flags = (rows >= 0) & (producers[flow.tensor_class[rows]] < 0)
        dtypes = self.collect_base("dtype").tolist()
        flags &= np.array(["int" in str(dtype).lower() for dtype in dtypes], dtype=bool)
        flags &= (self.phases == FORWARD) & ~self.is_constant
        return flags

    @cached_property
    def match_errors(self) -> Floats:
        """(tensors,) relative difference up to which a value of the other run is the same."""
        roundoffs = np.array([get_unit_roundoff(dtype) for dtype in self.collect_base("dtype")])
        errors: Floats = np.maximum(_MATCH_ERROR, _MATCH_ROUNDOFFS * roundoffs)
        errors[self.is_discrete] = 0.0
        return errors

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
    def is_repeated(self) -> Flags:
        """(tensors,) whether a rank holds one repeated number."""
        with np.errstate(invalid="ignore"):
            is_same = self.statistics[:, :, 0] == self.statistics[:, :, 1]
        flags: Flags = is_same.any(axis=1) & (self.sizes.max(axis=1) > 1)
        return flags

    def get_module_pattern(self, name: str) -> tuple[int, ...]:
        """Return which ranks have the same part of the weight in the module of a parameter."""
        return self._module_patterns.get(name.rpartition(".")[0], (0,) * self.n_ranks)

    @cached_property
    def _module_patterns(self) -> dict[str, tuple[int, ...]]:
        """Module -> the labels of the parameter that is most distributed."""
        patterns: dict[str, tuple[int, ...]] = {}
        for row, name in enumerate(self.collect_base("parameter").tolist()):
            if name and not self.is_repeated[row] and self.is_present[row].all():
                module, pattern = name.rpartition(".")[0], tuple(self.labels[row].tolist())
                known_pattern = patterns.get(module, pattern)
                patterns[module] = max(known_pattern, pattern, key=lambda item: len(set(item)))
        return patterns

    def find_rank_ops(self, name: str) -> RankOps:
        """Return what each rank calls in the place of an op of the base rank."""
        base_names = self.flows[self.base].trace.ops["name"].to_numpy()
        rows = np.flatnonzero(base_names == name)
        rank_ops = RankOps({}, {})
        if not len(rows):
            return rank_ops
        row = int(np.flatnonzero(self.ops[:, self.base] == rows[0])[0])
        for rank, flow in enumerate(self.flows):
            names = flow.trace.ops["name"]
            numbers = self.ops[:, rank]
            if numbers[row] >= 0:
                rank_ops.names[self.names[rank]] = str(names.iat[int(numbers[row])])
                continue
            begin = int(numbers[:row].max(initial=-1)) + 1
            later = numbers[row:]
            end = int(later[later >= 0].min(initial=len(names)))
            if begin < end:
                rank_ops.substitutes[self.names[rank]] = tuple(names.iloc[begin:end].tolist())
        return rank_ops

    @cached_property
    def joint_classes(self) -> Ints:
        """(tensors, ranks) the value class of each rank's tensor, -1 where a rank lacks it."""
        columns = []
        for rank, flow in enumerate(self.flows):
            ids = self.rows[:, rank]
            columns.append(np.where(ids >= 0, flow.tensor_class[ids], -1))
        return np.stack(columns, axis=1)

    def list_equal_rows(self, row: int) -> Ints:
        """Return the rows that hold the same value on every rank."""
        classes = self.joint_classes[row]
        if (classes < 0).any():
            return np.array([row])
        rows: Ints = np.flatnonzero((self.joint_classes == classes).all(axis=1))
        return rows

    def _collect_of_ops(self, columns: Sequence[AnyArray]) -> Objects:
        """Return (tensors,) a column of each rank's ops, of the first rank that has each tensor."""
        values = np.empty(len(self.rows), dtype=object)
        row_ops = self.ops[self.row_ops]
        for rank, column in enumerate(columns):
            is_base = self.bases == rank
            values[is_base] = column[row_ops[is_base, rank]]
        return values

    @cached_property
    def labels(self) -> Ints:
        """(tensors, ranks) the first rank that has the same numbers; -1 where a rank lacks it.

        Equal are shape, extremes, mean and norm, the last two up to the order of summation.
        """
        shapes = self.shape_codes
        labels = np.where(self.is_present, np.arange(self.n_ranks), -1)
        for rank in range(1, self.n_ranks):
            for earlier in range(rank - 1, -1, -1):
                is_equal = self.is_present[:, rank] & self.is_present[:, earlier]
                is_equal &= shapes[:, rank] == shapes[:, earlier]
                is_equal &= _flag_equal(self.statistics[:, rank], self.statistics[:, earlier])
                labels[is_equal, rank] = labels[is_equal, earlier]
        return labels

    @cached_property
    def shape_codes(self) -> Ints:
        """(tensors, ranks) a number for each shape, -1 where the rank lacks the tensor."""
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


def flag_backward_pass(trace: Trace) -> Flags:
    """Return (ops,) whether each op runs during the backward pass.

    Where calls are recorded, what a custom gradient calls is recorded as forward calls.
    """
    phases = trace.ops["phase"].to_numpy()
    is_backward: Flags = phases == BACKWARD
    if not is_backward.any():
        return is_backward
    first, last = np.flatnonzero(is_backward)[[0, -1]]
    is_called = phases == COMMUNICATION
    if (trace.ops["forward"] >= 0).any():
        is_called |= (phases == FORWARD) & ~trace.ops["recomputed"].to_numpy()
    is_between = np.zeros(len(phases), dtype=bool)
    is_between[first : last + 1] = True
    is_backward |= is_called & is_between
    return is_backward


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
