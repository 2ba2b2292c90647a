"""How the values of sibling ranks make up the value of the whole run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Flags, Ints
from .batch_slices import BatchSlices
from .kinds import number_kinds
from .other_run import OtherRun
from .partial_sums import (
    list_sum_groups,
    list_summand_patterns,
    list_total_patterns,
    load_ranks,
    measure_parts,
)
from .relation import Relation, add_parts, join_parts
from .sibling_tensors import Siblings

#: Share of the votes of its kind that a relation needs to hold for values without own evidence.
_CLEAR_VOTE = 0.7
#: Values of a kind whose whole tensors are read to find out whether they are partial sums.
_SUM_SAMPLES = 2


@dataclass(frozen=True)
class RowRelations:
    """The relation of every row of sibling tensors."""

    relations: tuple[Relation | None, ...]  #: (tensors,) None if nothing is known
    is_proved: Flags  #: (tensors,) the relation does not follow from other values of its kind
    matches: Ints  #: (tensors,) entry of the other run's values that the combined value equals
    kinds: Ints  #: (tensors,) number of the kind
    groups: list[tuple[int, ...]]  #: per rank its group, of the groups that values are added up in


def find_relations(siblings: Siblings, other: OtherRun, slices: BatchSlices) -> RowRelations:
    """Decide the relation of every row of sibling tensors.

    A relation is proved for a value by a value of the other run that equals the combined one. It is
    decided by the votes of all values of a kind: one layer that disagrees is not another relation.
    """
    return _RelationSearch(siblings, other, slices).run()


class _RelationSearch:
    """The state of one search."""

    def __init__(self, siblings: Siblings, other: OtherRun, slices: BatchSlices) -> None:
        self._siblings = siblings
        self._other = other
        self._slices = slices
        self._kinds = number_kinds(siblings)
        self._is_constant = siblings.is_constant
        self._evidence: list[Relation | None] = [None] * len(siblings.rows)
        self._matches = np.full(len(siblings.rows), -1)

    def run(self) -> RowRelations:
        """Collect evidence, let the kinds vote, and give every row its relation."""
        siblings, slices = self._siblings, self._slices
        distinct = np.arange(siblings.n_ranks)
        all_patterns = np.where(siblings.is_present, distinct, -1)
        is_single = (siblings.sizes.max(axis=1) == 1) & ~siblings.is_discrete
        groups = list_sum_groups(siblings)
        self._match_repeated_numbers()
        self._match(siblings.labels)
        self._match(all_patterns)
        for group in groups:
            self._match(siblings.labels, group, 1.0, is_single)
        self._match_totals()
        if slices.factor != 1.0:
            # the other run may hold the sum, too: what was reduced, and then divided
            self._match_sums(groups, slices.factor, siblings.is_backward)
        self._match_sums(groups, 1.0)
        if slices.count > 1:
            everyone = (0,) * siblings.n_ranks
            self._match(siblings.labels, everyone, 1.0 / slices.count, is_single)
        if slices.factor != 1.0:
            is_sliced = (siblings.labels != siblings.labels[:, :1]).any(axis=1)
            self._match(siblings.labels, None, slices.factor, siblings.is_backward & is_sliced)
            self._match_computed_gradients()
            self._match_sums(groups, slices.factor)
        self._share_evidence()
        is_proved = np.array([relation is not None for relation in self._evidence], dtype=bool)
        return RowRelations(tuple(self._vote()), is_proved, self._matches, self._kinds, groups)

    def _match_repeated_numbers(self) -> None:
        """Decide about parameters, and gradients, of one repeated number by name and size.

        Zeros of any size are found among the values of the other run; they prove nothing. They are
        cut like the weight of the same module, or not at all. What a module returns of its
        parameters (a bias that is added later) is cut as they are.
        """
        siblings = self._siblings
        is_repeated = siblings.is_repeated
        everyone = (0,) * siblings.n_ranks
        for column in ("parameter", "gradient_of"):
            names = siblings.collect_base(column)
            possible_sizes = self._other.list_possible_sizes(column)
            for row in np.flatnonzero(is_repeated & siblings.is_present.all(axis=1)).tolist():
                sizes = possible_sizes.get(names[row], set())
                weight_pattern = siblings.get_module_pattern(names[row])
                for pattern in (everyone, weight_pattern, tuple(range(siblings.n_ranks))):
                    if sum(siblings.sizes[row, rank] for rank in set(pattern)) in sizes:
                        for equal_row in siblings.list_equal_rows(row).tolist():
                            self._evidence[equal_row] = join_parts(pattern)
                        break
        self._is_constant = self._is_constant | is_repeated

    def _match_computed_gradients(self) -> None:
        """Give the factor of the slices to what the backward pass computes from such gradients.

        A constant of the model may undo the factor: half of a gradient of two slices is a gradient
        of the other run, too. What is computed from it tells which of the two it is.
        """
        siblings, factor = self._siblings, self._slices.factor
        flow = siblings.flows[siblings.base]
        values = siblings.joint_classes[:, siblings.base].tolist()
        ops = siblings.ops[siblings.row_ops, siblings.base].tolist()
        is_output = siblings.collect_base("slot_kind") == "output"
        rows = np.flatnonzero(siblings.is_backward & ~self._is_constant)
        matches = np.full(len(values), -1)
        for _, matched_rows, entries in self._other.find_combined(
            siblings, rows, siblings.labels, None, factor
        ):
            matches[matched_rows] = entries
        scaled_values: set[int] = set()
        for row in rows.tolist():
            relation = self._evidence[row]
            sources = flow.reads[ops[row]] if is_output[row] else (values[row],)
            is_scaled = relation is not None and relation.factor == factor
            if matches[row] >= 0 and not is_scaled and not scaled_values.isdisjoint(sources):
                self._evidence[row] = join_parts(tuple(siblings.labels[row].tolist()), factor)
                self._matches[row] = matches[row]
                is_scaled = True
            if is_scaled:
                scaled_values.add(values[row])

    def _match_totals(self) -> None:
        """Look for gradients that a rank accumulates: the last micro-batch has the total."""
        siblings = self._siblings
        if siblings.n_batches < 2:
            return
        is_gradient = siblings.collect_base("gradient_of") != ""
        self._match(list_total_patterns(siblings), is_allowed=is_gradient)

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
        for relation, rows, entries in self._other.find_combined(
            self._siblings, np.flatnonzero(is_open), patterns, groups, factor
        ):
            for row in rows[entries >= 0].tolist():
                self._evidence[row] = relation
            self._matches[rows] = np.maximum(self._matches[rows], entries)

    def _match_sums(
        self, groups: list[tuple[int, ...]], factor: float, is_allowed: Flags | None = None
    ) -> None:
        """Look for partial sums among a few values of each kind, by their whole tensors."""
        siblings = self._siblings
        is_open = (self._matches < 0) & ~self._is_constant & ~siblings.is_discrete
        is_open &= siblings.is_present.all(axis=1)
        is_open &= (siblings.shape_codes == siblings.shape_codes[:, :1]).all(axis=1)
        is_open &= (siblings.labels != 0).any(axis=1)
        is_open &= siblings.sizes.max(axis=1) > 1
        if is_allowed is not None:
            is_open &= is_allowed
        has_evidence = np.array([relation is not None for relation in self._evidence])
        proved_kinds = set(self._kinds[has_evidence].tolist())
        patterns = list_summand_patterns(siblings).tolist()
        samples: Counter[int] = Counter()
        for row in np.flatnonzero(is_open).tolist():
            kind = int(self._kinds[row])
            if kind in proved_kinds or samples[kind] >= _SUM_SAMPLES:
                continue
            arrays = load_ranks(siblings, row)
            if arrays is None:
                continue
            samples[kind] += 1
            pattern = tuple(patterns[row])
            for group in groups:
                relation = add_parts(pattern, group, factor)
                if relation is None:
                    continue
                statistics, size = measure_parts(arrays, relation)
                entry = self._other.find_whole(statistics, size, siblings.match_errors[row])
                if entry >= 0:
                    self._evidence[row] = relation
                    self._matches[row] = entry
                    break

    def _share_evidence(self) -> None:
        """Give the proof that a value is a sum to all rows that hold it on every rank."""
        values = [tuple(row) for row in self._siblings.joint_classes.tolist()]
        evidence_of = {
            value: relation
            for value, relation in zip(values, self._evidence, strict=True)
            if relation is not None and relation.is_sum
        }
        for row, relation in enumerate(self._evidence):
            if relation is None and -1 not in values[row]:
                self._evidence[row] = evidence_of.get(values[row])

    def _vote(self) -> list[Relation | None]:
        """Return the relation of each row: that of most values of its kind.

        Outside of modules a kind may mix values of several parameters: there own evidence decides.
        """
        votes: dict[int, Counter[Relation]] = {}
        for row, relation in enumerate(self._evidence):
            if relation is not None:
                votes.setdefault(int(self._kinds[row]), Counter())[relation] += 1
        relations: list[Relation | None] = []
        is_loose = self._siblings.is_loose.tolist()
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
