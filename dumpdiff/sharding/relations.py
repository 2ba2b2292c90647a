"""How the values of sibling ranks make up the value of the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import get_unit_roundoff, is_discrete
from ..model.trace import BACKWARD, FORWARD
from .kinds import number_kinds
from .siblings import Siblings
from .value_index import ValueIndex

JOINED = "joined"  #: the different ones, concatenated; all equal: replicated
SUM = "sum"
MEAN = "mean"

#: Relative difference of statistics up to which two values are the same: correct runs of float32
#: differ by 1e-6 to 1e-5; narrower dtypes by some of their roundoffs.
_MATCH_ERROR = 1e-4
_MATCH_ROUNDOFFS = 8
#: Share of the votes of its kind that a relation needs to hold for values without own evidence.
_CLEAR_VOTE = 0.7
#: Values of a kind whose whole tensors are read to find out whether they are partial sums.
_SUM_SAMPLES = 2


@dataclass(frozen=True)
class Relation:
    """What the values of sibling ranks make up together."""

    how: str  #: JOINED, SUM or MEAN
    pattern: tuple[int, ...]  #: per rank the first rank that holds the same part; -1: has none
    factor: float = 1.0  #: the combined value is multiplied by it

    @property
    def parts(self) -> tuple[int, ...]:
        """The ranks that hold different parts."""
        return tuple(sorted(set(self.pattern) - {-1}))

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks hold the whole value."""
        return self.how == JOINED and len(self.parts) <= 1 and self.factor == 1.0


@dataclass(frozen=True)
class RowRelations:
    """The relation of every row of sibling tensors."""

    relations: tuple[Relation | None, ...]  #: (tensors,) None if nothing is known
    matches: Ints  #: (tensors,) entry of the other run's values that the combined value equals
    kinds: Ints  #: (tensors,) number of the kind


def combine_statistics(
    statistics: Floats, sizes: Ints, parts: list[int], how: str, factor: float
) -> tuple[Floats, Ints]:
    """Return (rows, 4) max, min, mean and norm of the combined values, and (rows,) their sizes.

    ``statistics`` is (rows, ranks, 4). Of a sum, only the mean follows from statistics, unless it
    is one of single numbers.
    """
    values = statistics[:, parts]
    part_sizes = sizes[:, parts]
    totals = part_sizes.sum(axis=1)
    combined = np.full((len(values), 4), np.nan)
    with np.errstate(all="ignore"):
        if how == JOINED:
            combined[:, 0] = values[:, :, 0].max(axis=1)
            combined[:, 1] = values[:, :, 1].min(axis=1)
            combined[:, 2] = (values[:, :, 2] * part_sizes).sum(axis=1) / totals
            combined[:, 3] = np.sqrt(np.square(values[:, :, 3]).sum(axis=1))
        else:
            share = 1.0 / len(parts) if how == MEAN else 1.0
            totals = part_sizes.max(axis=1)
            numbers = values[:, :, 0].sum(axis=1) * share
            is_single = totals == 1
            combined[:, 2] = values[:, :, 2].sum(axis=1) * share
            for column in (0, 1, 2):
                combined[is_single, column] = numbers[is_single]
            combined[is_single, 3] = np.abs(numbers[is_single])
        combined *= factor
        if factor < 0:
            combined[:, [0, 1]] = combined[:, [1, 0]]
            combined[:, 3] = np.abs(combined[:, 3])
    return combined, totals


def find_relations(siblings: Siblings, index: ValueIndex) -> RowRelations:
    """Decide the relation of every row of sibling tensors.

    A relation is proved for a value by a value of the other run that equals the combined one. It is
    decided by the votes of all values of a kind: one layer that disagrees is not another relation.
    """
    return _RelationSearch(siblings, index).run()


class _RelationSearch:
    """The state of one search."""

    def __init__(self, siblings: Siblings, index: ValueIndex) -> None:
        self._siblings = siblings
        self._index = index
        self._n_rows = len(siblings.rows)
        self._kinds = number_kinds(siblings)
        dtypes = siblings.collect_base("dtype")
        self._is_constant = siblings.collect_base("constant").astype(bool)
        self._is_discrete = np.array([is_discrete(dtype) for dtype in dtypes], dtype=bool)
        roundoffs = np.array([get_unit_roundoff(dtype) for dtype in dtypes])
        self._errors = np.maximum(_MATCH_ERROR, _MATCH_ROUNDOFFS * roundoffs)
        self._errors[self._is_discrete] = 0.0
        base_ops = siblings.ops[siblings.row_ops]
        self._phases = np.empty(self._n_rows, dtype=object)
        for rank, flow in enumerate(siblings.flows):
            is_base = siblings.bases == rank
            phases = flow.trace.ops["phase"].to_numpy()
            self._phases[is_base] = phases[base_ops[is_base, rank]]
        self._evidence: list[Relation | None] = [None] * self._n_rows
        self._matches = np.full(self._n_rows, -1)

    def run(self) -> RowRelations:
        """Collect evidence, let the kinds vote, and give every row its relation."""
        distinct = np.arange(self._siblings.n_ranks)
        all_patterns = np.where(self._siblings.is_present, distinct, -1)
        self._match(self._siblings.labels, JOINED, 1.0)
        self._match(all_patterns, JOINED, 1.0)
        self._match_sums(1.0)
        n_slices = self._count_batch_slices()
        if n_slices > 1:
            self._match(all_patterns, MEAN, 1.0, self._siblings.sizes.max(axis=1) == 1)
            factor = 1.0 / n_slices
            is_backward = self._phases == BACKWARD
            self._match(self._siblings.labels, JOINED, factor, is_backward)
            self._match_sums(factor)
        relations = self._vote()
        return RowRelations(tuple(relations), self._matches, self._kinds)

    def _match(
        self, patterns: Ints, how: str, factor: float, is_allowed: Flags | None = None
    ) -> None:
        """Look for the combined values of rows without evidence among those of the other run."""
        is_open = (self._matches < 0) & ~self._is_constant
        if is_allowed is not None:
            is_open &= is_allowed
        for pattern, rows in _group_patterns(patterns, np.flatnonzero(is_open)):
            parts = sorted(set(pattern) - {-1})
            if not parts or (how != JOINED and len(parts) < 2):
                continue
            statistics, sizes = combine_statistics(
                self._siblings.statistics[rows], self._siblings.sizes[rows], parts, how, factor
            )
            entries = self._index.find(sizes, statistics, self._errors[rows])
            relation = Relation(how, pattern, factor)
            for row in rows[entries >= 0].tolist():
                self._evidence[row] = relation
            self._matches[rows] = np.maximum(self._matches[rows], entries)

    def _match_sums(self, factor: float) -> None:
        """Look for partial sums among a few values of each kind, by their whole tensors."""
        siblings = self._siblings
        is_open = (self._matches < 0) & ~self._is_constant & ~self._is_discrete
        is_open &= siblings.is_present.all(axis=1)
        is_open &= (siblings.sizes == siblings.sizes[:, :1]).all(axis=1)
        is_open &= (siblings.labels != 0).any(axis=1)
        has_evidence = np.array([relation is not None for relation in self._evidence])
        proved_kinds = set(self._kinds[has_evidence].tolist())
        samples: Counter[int] = Counter()
        pattern = tuple(range(siblings.n_ranks))
        for row in np.flatnonzero(is_open).tolist():
            kind = int(self._kinds[row])
            if kind in proved_kinds or samples[kind] >= _SUM_SAMPLES:
                continue
            samples[kind] += 1
            statistics = measure_sum(siblings, row, factor)
            if statistics is None:
                continue
            size = siblings.sizes[row, :1]
            entry = self._index.find(size, statistics[None], self._errors[row : row + 1])[0]
            if entry >= 0:
                self._evidence[row] = Relation(SUM, pattern, factor)
                self._matches[row] = entry

    def _count_batch_slices(self) -> int:
        """Return the number of slices that the input ids of the run are cut into; 1 if they are not.

        Slices are integers of the forward pass that together are integers of the other run.
        """
        counts: Counter[int] = Counter()
        is_forward = self._phases == FORWARD
        for row in np.flatnonzero(is_forward & self._is_discrete & (self._matches >= 0)).tolist():
            relation = self._evidence[row]
            if relation is not None:
                counts[len(relation.parts)] += 1
        return max(counts, default=1)

    def _vote(self) -> list[Relation | None]:
        """Return the relation of each row: that of most values of its kind."""
        votes: dict[int, Counter[Relation]] = {}
        for row, relation in enumerate(self._evidence):
            if relation is not None:
                votes.setdefault(int(self._kinds[row]), Counter())[relation] += 1
        relations: list[Relation | None] = []
        for row, kind in enumerate(self._kinds.tolist()):
            own = self._evidence[row]
            if kind not in votes:
                relations.append(None)
                continue
            winner, n_votes = votes[kind].most_common(1)[0]
            is_clear = n_votes >= _CLEAR_VOTE * votes[kind].total()
            relations.append(winner if is_clear or own is None else own)
        return relations


def _group_patterns(patterns: Ints, rows: Ints) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield every pattern among some rows, with these rows."""
    if not len(rows):
        return
    unique_patterns, codes = np.unique(patterns[rows], axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    for code, pattern in enumerate(unique_patterns.tolist()):
        yield tuple(pattern), rows[codes == code]


def measure_sum(siblings: Siblings, row: int, factor: float) -> Floats | None:
    """Return (4,) the statistics of the sum over ranks; None if a whole tensor is missing."""
    from ..graph.statistics import compute_statistics

    total = add_tensors(siblings, row, range(siblings.n_ranks))
    if total is None:
        return None
    return np.array(compute_statistics(total * factor)[:4])


def add_tensors(siblings: Siblings, row: int, ranks: Iterator[int] | range) -> Floats | None:
    """Return the sum of the whole tensors of some ranks; None if one is missing."""
    total = None
    for rank in ranks:
        flow = siblings.flows[rank]
        tensor = int(siblings.rows[row, rank])
        if tensor < 0 or not flow.tensors["file"].iat[tensor]:
            return None
        array = flow.trace.array(tensor)
        total = array if total is None else total + array
    return total


def index_values(siblings: Siblings) -> ValueIndex:
    """Return the values of a run that relations of another run are proved by.

    Of a run of one device these are all values; of several ranks, those that the ranks share, and
    what their different values are together.
    """
    rows = np.arange(len(siblings.rows))
    is_constant = siblings.collect_base("constant").astype(bool)
    rows = rows[~is_constant]
    blocks = []
    for pattern, pattern_rows in _group_patterns(siblings.labels, rows):
        parts = sorted(set(pattern) - {-1})
        statistics, sizes = combine_statistics(
            siblings.statistics[pattern_rows], siblings.sizes[pattern_rows], parts, JOINED, 1.0
        )
        blocks.append((sizes, statistics, pattern_rows))
    sizes = np.concatenate([block[0] for block in blocks])
    statistics = np.concatenate([block[1] for block in blocks])
    entries = np.concatenate([block[2] for block in blocks])
    return ValueIndex(sizes, statistics, entries)
