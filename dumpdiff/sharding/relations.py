"""How the values of sibling ranks make up the value of the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.statistics import compute_statistics
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import get_unit_roundoff, is_discrete
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD
from .kinds import number_kinds
from .other_run import OtherRun
from .relation import (
    Relation,
    add_arrays,
    add_parts,
    combine_statistics,
    group_patterns,
    join_parts,
)
from .siblings import Siblings

#: Relative difference of statistics up to which two values are the same: correct runs of float32
#: differ by 1e-6 to 1e-5; narrower dtypes by some of their roundoffs.
_MATCH_ERROR = 1e-4
_MATCH_ROUNDOFFS = 8
#: Share of the votes of its kind that a relation needs to hold for values without own evidence.
_CLEAR_VOTE = 0.7
#: Values of a kind whose whole tensors are read to find out whether they are partial sums.
_SUM_SAMPLES = 2
#: Partitions of the ranks that sums are tried for: tensor, data, context, expert parallel groups.
_MAX_GROUPS = 4


@dataclass(frozen=True)
class RowRelations:
    """The relation of every row of sibling tensors."""

    relations: tuple[Relation | None, ...]  #: (tensors,) None if nothing is known
    matches: Ints  #: (tensors,) entry of the other run's values that the combined value equals
    kinds: Ints  #: (tensors,) number of the kind
    groups: list[tuple[int, ...]]  #: per rank its group, of the groups that values are added up in
    factor: float  #: of gradients of a slice of the batch
    n_slices: int  #: of the batch, 1: every rank has the whole batch
    is_loose: Flags  #: (tensors,) outside of modules, where a kind is not certain


def find_relations(siblings: Siblings, other: OtherRun) -> RowRelations:
    """Decide the relation of every row of sibling tensors.

    A relation is proved for a value by a value of the other run that equals the combined one. It is
    decided by the votes of all values of a kind: one layer that disagrees is not another relation.
    """
    return _RelationSearch(siblings, other).run()


class _RelationSearch:
    """The state of one search."""

    def __init__(self, siblings: Siblings, other: OtherRun) -> None:
        self._siblings = siblings
        self._other = other
        self._index = other.index
        self._n_rows = len(siblings.rows)
        self._kinds = number_kinds(siblings)
        dtypes = siblings.collect_base("dtype")
        self._is_constant = siblings.collect_base("constant").astype(bool)
        self._is_discrete = np.array([is_discrete(dtype) for dtype in dtypes], dtype=bool)
        roundoffs = np.array([get_unit_roundoff(dtype) for dtype in dtypes])
        self._errors = np.maximum(_MATCH_ERROR, _MATCH_ROUNDOFFS * roundoffs)
        self._errors[self._is_discrete] = 0.0
        self._is_loose = np.zeros(self._n_rows, dtype=bool)  #: outside of modules
        base_ops = siblings.ops[siblings.row_ops]
        self._phases = np.empty(self._n_rows, dtype=object)
        for rank, flow in enumerate(siblings.flows):
            is_base = siblings.bases == rank
            phases = flow.trace.ops["phase"].to_numpy()
            parents = flow.trace.ops["parent"].to_numpy()
            self._phases[is_base] = phases[base_ops[is_base, rank]]
            self._is_loose[is_base] = parents[base_ops[is_base, rank]] < 0
        for column in ("parameter", "gradient_of", "update_of"):
            self._is_loose &= siblings.collect_base(column) == ""
        self._evidence: list[Relation | None] = [None] * self._n_rows
        self._matches = np.full(self._n_rows, -1)

    def run(self) -> RowRelations:
        """Collect evidence, let the kinds vote, and give every row its relation."""
        siblings = self._siblings
        distinct = np.arange(siblings.n_ranks)
        all_patterns = np.where(siblings.is_present, distinct, -1)
        is_single = (siblings.sizes.max(axis=1) == 1) & ~self._is_discrete
        groups = self._list_sum_groups()
        self._match_repeated_numbers()
        self._match(siblings.labels)
        self._match(all_patterns)
        for group in groups:
            self._match(siblings.labels, group, 1.0, is_single)
        self._match_totals()
        self._match_sums(groups, 1.0)
        n_slices = self._count_batch_slices()
        factor = 1.0 / n_slices
        if n_slices > 1:
            everyone = (0,) * siblings.n_ranks
            self._match(siblings.labels, everyone, factor, is_single)
            self._match(siblings.labels, None, factor, self._phases == BACKWARD)
            self._match_sums(groups, factor)
        return RowRelations(
            tuple(self._vote()),
            self._matches,
            self._kinds,
            groups,
            self._find_factor(factor),
            n_slices,
            self._is_loose,
        )

    def _match_repeated_numbers(self) -> None:
        """Decide about parameters, and gradients, of one repeated number by name and size.

        Zeros of any size are found among the values of the other run; they prove nothing.
        """
        siblings = self._siblings
        with np.errstate(invalid="ignore"):
            is_repeated = siblings.statistics[:, :, 0] == siblings.statistics[:, :, 1]
        is_repeated = is_repeated.any(axis=1) & (siblings.sizes.max(axis=1) > 1)
        distinct = np.arange(siblings.n_ranks)
        for column in ("parameter", "gradient_of"):
            names = siblings.collect_base(column)
            sizes = self._other.get_sizes(column)
            for row in np.flatnonzero(is_repeated & (names != "")).tolist():
                size = sizes.get(names[row], -1)
                own_sizes = siblings.sizes[row]
                if size == own_sizes.sum() and (own_sizes > 0).all():
                    self._evidence[row] = join_parts(tuple(distinct.tolist()))
                elif (own_sizes == size).all():
                    self._evidence[row] = join_parts((0,) * siblings.n_ranks)
        self._is_constant = self._is_constant | is_repeated

    def _match_totals(self) -> None:
        """Look for gradients that a rank accumulates: the last micro-batch has the total."""
        siblings = self._siblings
        if siblings.n_batches < 2:
            return
        is_gradient = siblings.collect_base("gradient_of") != ""
        is_last = np.arange(siblings.n_ranks) % siblings.n_batches == siblings.n_batches - 1
        patterns = np.where(is_last, siblings.labels, -1)
        self._match(patterns, is_allowed=is_gradient)

    def _list_sum_groups(self) -> list[tuple[int, ...]]:
        """Return the groups that values may be added up in: all ranks, and those of reductions.

        The ranks of a group have the same result of a reduction.
        """
        siblings = self._siblings
        groups: Counter[tuple[int, ...]] = Counter()
        for _, output in list_reductions(siblings):
            pattern = tuple(siblings.labels[output].tolist())
            if len(set(pattern)) < len(pattern) and -1 not in pattern:
                groups[pattern] += 1
        everyone = (0,) * siblings.n_ranks
        if siblings.n_batches > 1:
            groups[siblings.batch_groups] += 1
        frequent = [group for group, _ in groups.most_common(_MAX_GROUPS) if group != everyone]
        return [everyone, *frequent]

    def _match(
        self,
        patterns: Ints,
        groups: tuple[int, ...] | None = None,
        factor: float = 1.0,
        is_allowed: Flags | None = None,
    ) -> None:
        """Look for the combined values of rows without evidence among those of the other run.

        Values are added up within ``groups``, or without them concatenated.
        """
        is_open = (self._matches < 0) & ~self._is_constant
        if is_allowed is not None:
            is_open &= is_allowed
        for pattern, rows in group_patterns(patterns, np.flatnonzero(is_open)):
            if groups is None:
                relation: Relation | None = join_parts(pattern, factor)
            else:
                relation = add_parts(pattern, groups, factor)
            if relation is None or not relation.parts:
                continue
            statistics, sizes = combine_statistics(
                self._siblings.statistics[rows], self._siblings.sizes[rows], relation
            )
            entries = self._index.find(sizes, statistics, self._errors[rows])
            for row in rows[entries >= 0].tolist():
                self._evidence[row] = relation
            self._matches[rows] = np.maximum(self._matches[rows], entries)

    def _match_sums(self, groups: list[tuple[int, ...]], factor: float) -> None:
        """Look for partial sums among a few values of each kind, by their whole tensors."""
        siblings = self._siblings
        is_open = (self._matches < 0) & ~self._is_constant & ~self._is_discrete
        is_open &= siblings.is_present.all(axis=1)
        is_open &= (siblings.shape_codes == siblings.shape_codes[:, :1]).all(axis=1)
        is_open &= (siblings.labels != 0).any(axis=1)
        is_open &= siblings.sizes.max(axis=1) > 1
        has_evidence = np.array([relation is not None for relation in self._evidence])
        proved_kinds = set(self._kinds[has_evidence].tolist())
        samples: Counter[int] = Counter()
        for row in np.flatnonzero(is_open).tolist():
            kind = int(self._kinds[row])
            if kind in proved_kinds or samples[kind] >= _SUM_SAMPLES:
                continue
            arrays = load_ranks(siblings, row)
            if arrays is None:
                continue
            samples[kind] += 1
            pattern = tuple(siblings.labels[row].tolist())
            for group in groups:
                relation = add_parts(pattern, group, factor)
                if relation is None:
                    continue
                statistics, size = measure_parts(arrays, relation)
                sizes = np.array([size])
                entry = self._index.find(sizes, statistics[None], self._errors[row : row + 1])[0]
                if entry >= 0:
                    self._evidence[row] = relation
                    self._matches[row] = entry
                    break

    def _find_factor(self, factor: float) -> float:
        """Return the factor of most gradients that are not the same on all ranks."""
        counts: Counter[float] = Counter()
        for row in np.flatnonzero(self._phases == BACKWARD).tolist():
            relation = self._evidence[row]
            if relation is not None and (relation.is_sum or len(relation.parts) > 1):
                counts[relation.factor] += 1
        return factor if counts[factor] > counts[1.0] else 1.0

    def _count_batch_slices(self) -> int:
        """Return the number of slices that the input ids are cut into; 1 if they are whole.

        Slices are integers of the forward pass that together are integers which all ranks of the
        other run have.
        """
        counts: Counter[int] = Counter()
        is_forward = self._phases == FORWARD
        for row in np.flatnonzero(is_forward & self._is_discrete & (self._matches >= 0)).tolist():
            relation = self._evidence[row]
            if relation is not None and self._other.is_shared(int(self._matches[row])):
                counts[len(relation.parts)] += 1
        return max(counts, default=1)

    def _vote(self) -> list[Relation | None]:
        """Return the relation of each row: that of most values of its kind.

        Outside of modules a kind may mix values of several parameters: there own evidence decides.
        """
        votes: dict[int, Counter[Relation]] = {}
        for row, relation in enumerate(self._evidence):
            if relation is not None:
                votes.setdefault(int(self._kinds[row]), Counter())[relation] += 1
        relations: list[Relation | None] = []
        is_loose = self._is_loose.tolist()
        patterns = [tuple(labels) for labels in self._siblings.labels.tolist()]
        for row, kind in enumerate(self._kinds.tolist()):
            own = self._evidence[row]
            if kind not in votes or (is_loose[row] and own is not None):
                relations.append(own)
                continue
            winner, n_votes = votes[kind].most_common(1)[0]
            is_clear = n_votes >= _CLEAR_VOTE * votes[kind].total()
            if is_loose[row]:
                is_clear = len(votes[kind]) == 1 and winner.pattern == patterns[row]
            relations.append(winner if is_clear else own)
        return relations


def load_ranks(siblings: Siblings, row: int) -> list[AnyArray] | None:
    """Return the whole tensors of all ranks; None if one is missing."""
    arrays = []
    for rank, flow in enumerate(siblings.flows):
        tensor = int(siblings.rows[row, rank])
        if tensor < 0 or not flow.tensors["file"].iat[tensor]:
            return None
        arrays.append(flow.trace.array(tensor))
    return arrays


def measure_parts(arrays: Sequence[AnyArray], relation: Relation) -> tuple[Floats, int]:
    """Return (4,) the statistics of the combined value, and its number of elements."""
    parts = [add_arrays(arrays, ranks).reshape(-1) for ranks in relation.parts]
    whole = np.concatenate(parts) * relation.factor
    return np.array(compute_statistics(whole)[:4]), whole.size


def list_reductions(siblings: Siblings) -> list[tuple[int, int]]:
    """Return the rows of the input and the output of every reduction over ranks."""
    flow = siblings.flows[siblings.base]
    ops = flow.trace.ops
    is_reduction = ops["kind"].str.lower().str.contains("reduce").to_numpy()
    is_reduction &= (ops["phase"] == COMMUNICATION).to_numpy()
    row_ops = flow.tensors["op"].to_numpy()
    slot_kinds = flow.tensors["slot_kind"].to_numpy()
    is_constant = flow.tensors["constant"].to_numpy()
    rows_of: dict[int, tuple[list[int], list[int]]] = {}
    for row in np.flatnonzero(is_reduction[row_ops] & ~is_constant).tolist():
        inputs, outputs = rows_of.setdefault(int(row_ops[row]), ([], []))
        (outputs if slot_kinds[row] == "output" else inputs).append(row)
    return [(inputs[-1], outputs[0]) for inputs, outputs in rows_of.values() if inputs and outputs]
