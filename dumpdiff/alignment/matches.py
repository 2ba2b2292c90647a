"""The match between two sides while it grows: which value class and which op is which, and why.

This is the one mutable object of the package. The stages of the alignment add pairs; only the ones
in :mod:`.later_results`, :mod:`.partial_sums`, :mod:`.excluded_pairs` and :mod:`.gradient_shares`
remove some. Names that end in ``_t`` belong to the target, those in ``_r`` to the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pandas as pd

from ..graph import Flow
from ..model.arrays import Flags, Floats, Ints
from ..model.trace import BACKWARD
from .confidence import GUESSES, MOMENT, NEW_WEIGHT
from .values import Fingerprints, compute_distances

#: Canonical kind of the operators that add gradients up.
_SUM_KIND = "add"


@dataclass(frozen=True)
class NewWeight:
    """A pair of new weights and what they were computed from, by class."""

    target: int
    reference: int
    old_target: int
    old_reference: int
    #: second moments of Adam, after the step, of target and reference; -1 for other rules
    second_moments: tuple[int, int] = (-1, -1)


@dataclass
class Matching:
    """A partial one-to-one map between the classes, and between the ops, of two sides."""

    target: Flow
    reference: Flow
    kinds_t: list[str]  #: canonical operator kind of each op
    kinds_r: list[str]
    tolerance: float  #: distance of statistics within which values agree
    classes_t: Ints = field(init=False)  #: target class -> reference class or -1
    classes_r: Ints = field(init=False)
    ops_t: Ints = field(init=False)  #: target op -> reference op or -1
    ops_r: Ints = field(init=False)
    #: target class -> value, parameter, name, structure, role, ...
    evidence: dict[int, str] = field(default_factory=dict)
    confidence: dict[int, float] = field(default_factory=dict)  #: see :mod:`.confidence`
    #: classes that are paired as new weights of paired weights and in no other way
    reserved_t: frozenset[int] = frozenset()
    reserved_r: frozenset[int] = frozenset()
    #: the weight that each value of the optimizer updates, -1 for other values; () if unknown
    updated_t: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    updated_r: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    new_weights: list[NewWeight] = field(default_factory=list)
    states: list[int] = field(default_factory=list)  #: target classes of paired optimizer states

    def __post_init__(self) -> None:
        self.classes_t = np.full(len(self.target.classes), -1)
        self.classes_r = np.full(len(self.reference.classes), -1)
        self.ops_t = np.full(len(self.target.trace.ops), -1)
        self.ops_r = np.full(len(self.reference.trace.ops), -1)
        # Elements of these views are Python numbers, which loops look up several times faster.
        self.partners_t, self.partners_r = self.classes_t.data, self.classes_r.data
        self.op_partners_t, self.op_partners_r = self.ops_t.data, self.ops_r.data
        self.prints_t = Fingerprints.from_table(self.target.classes)
        self.prints_r = Fingerprints.from_table(self.reference.classes)
        self._sizes_t = self.prints_t.size.data
        self._sizes_r = self.prints_r.size.data
        self.producer_t: Sequence[int] = self.target.list_column("producer")
        self.producer_r: Sequence[int] = self.reference.list_column("producer")
        self._positions_t = self.target.positions
        self._positions_r = self.reference.positions
        self._places_t, self._places_r = self._positions_t.data, self._positions_r.data
        self._n_t, self._n_r = len(self.target.classes), len(self.reference.classes)
        self._phase_t = self.target.list_column("phase")
        self._phase_r = self.reference.list_column("phase")
        self.kind_codes_t, self.kind_codes_r = (
            number_kinds(self.kinds_t),
            number_kinds(self.kinds_r),
        )
        self._flags_t = _flag_gradient_terms(self.target, self.kinds_t)
        self._flags_r = _flag_gradient_terms(self.reference, self.kinds_r)
        self._is_named_t, self._is_term_t = (flags.data for flags in self._flags_t)
        self._is_named_r, self._is_term_r = (flags.data for flags in self._flags_r)

    def compute_distance(self, t: int, r: int) -> float:
        """Return the distance of the statistics of two classes, Inf if nothing can be compared."""
        distances = compute_distances(self.prints_t, np.array([t]), self.prints_r, np.array([r]))
        return float(distances[0])

    def measure_guesses(self) -> tuple[Ints, Floats]:
        """Return the target classes of guessed pairs, and the distance of each to its partner."""
        targets = np.flatnonzero(self.classes_t >= 0)
        targets = targets[[self.evidence[t] in GUESSES for t in targets.tolist()]]
        references = self.classes_t[targets]
        return targets, compute_distances(self.prints_t, targets, self.prints_r, references)

    def compute_place(self, t: int, r: int) -> tuple[float, float, float]:
        """Return where two classes are in the two runs, for sorting pairs.

        It is the same if target and reference are exchanged.
        """
        place_t, place_r = self._places_t[t], self._places_r[r]
        return (place_t + place_r, min(place_t, place_r), t / self._n_t + r / self._n_r)

    def sort_pairs(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return (target class, reference class) pairs in the order of the two runs.

        Where one pair excludes another, the earlier one counts, whichever side is the target.
        """
        flat_pairs = np.fromiter(chain.from_iterable(pairs), dtype=np.int64)
        targets, references = flat_pairs.reshape(-1, 2).T
        order = self._order_pairs(targets, references)
        return list(zip(targets[order].tolist(), references[order].tolist(), strict=True))

    def _order_pairs(self, targets: Ints, references: Ints) -> Ints:
        """Return the order in which :meth:`sort_pairs` has pairs."""
        places_t, places_r = self._positions_t[targets], self._positions_r[references]
        order: Ints = np.lexsort(
            (
                targets / self._n_t + references / self._n_r,
                np.minimum(places_t, places_r),
                places_t + places_r,
            )
        )
        return order

    def list_open_producers(self) -> tuple[Ints, Ints]:
        """Return the unpaired producers of paired classes in the order of the two runs."""
        targets = np.flatnonzero(self.classes_t >= 0)
        references = self.classes_t[targets]
        producers_t = self.target.producers[targets]
        producers_r = self.reference.producers[references]
        has_producers = (producers_t >= 0) & (producers_r >= 0)
        is_open = has_producers & (self.ops_t[producers_t] < 0) & (self.ops_r[producers_r] < 0)
        targets, references = targets[is_open], references[is_open]
        order = self._order_pairs(targets, references)
        return producers_t[is_open][order], producers_r[is_open][order]

    def list_op_pairs(self, is_chosen: Flags) -> list[tuple[int, int]]:
        """Return the pairs of ops so far, of chosen target ops, in the order of the two runs."""
        targets = np.flatnonzero((self.ops_t >= 0) & is_chosen)
        references = self.ops_t[targets]
        places = targets / len(self.ops_t) + references / len(self.ops_r)
        order = np.argsort(places, kind="stable")
        return list(zip(targets[order].tolist(), references[order].tolist(), strict=True))

    def can_pair(self, t: int, r: int) -> bool:
        """Return whether both are unpaired, of equal size and, if computed, of the same phase.

        The gradient of a parameter is no term of a sum: that sum is the other side's gradient, and
        if it differs one side lacks a term. What updates a weight is no partner of what updates
        another one.
        """
        is_paired = self.partners_t[t] >= 0 or self.partners_r[r] >= 0
        if is_paired or self._sizes_t[t] != self._sizes_r[r]:
            return False
        if (self._is_term_t[t] and self._is_named_r[r]) or (
            self._is_named_t[t] and self._is_term_r[r]
        ):
            return False
        if not self._update_one_weight(t, r):
            return False
        is_leaf = min(self.producer_t[t], self.producer_r[r]) < 0
        is_same_phase = self._phase_t[t] == self._phase_r[r]
        return bool(is_leaf or is_same_phase)

    def _update_one_weight(self, t: int, r: int) -> bool:
        """Return whether two values update one weight, or one of them none that is known."""
        if not len(self.updated_t) or not len(self.updated_r):
            return True
        weight_t, weight_r = self.updated_t.data[t], self.updated_r.data[r]
        if weight_t < 0 or weight_r < 0:
            return True
        partners = (self.partners_t[weight_t], self.partners_r[weight_r])
        return partners in ((-1, -1), (weight_r, weight_t))

    def flag_pairable(self, targets: Ints, references: Ints) -> Flags:
        """Return (pairs,) what :meth:`can_pair` says of many pairs."""
        is_pairable = (self.classes_t[targets] < 0) & (self.classes_r[references] < 0)
        is_pairable &= self.prints_t.size[targets] == self.prints_r.size[references]
        is_named_t, is_term_t = (flags[targets] for flags in self._flags_t)
        is_named_r, is_term_r = (flags[references] for flags in self._flags_r)
        is_pairable &= ~(is_term_t & is_named_r) & ~(is_named_t & is_term_r)
        phases_t = self.target.classes["phase"].to_numpy()[targets]
        phases_r = self.reference.classes["phase"].to_numpy()[references]
        is_leaf = self.target.producers[targets] < 0
        is_leaf |= self.reference.producers[references] < 0
        flags: Flags = is_pairable & (is_leaf | (phases_t == phases_r))
        if len(self.updated_t) and len(self.updated_r):
            weights_t, weights_r = self.updated_t[targets], self.updated_r[references]
            partners_t, partners_r = self.classes_t[weights_t], self.classes_r[weights_r]
            flags &= (
                (np.minimum(weights_t, weights_r) < 0)
                | (np.maximum(partners_t, partners_r) < 0)
                | (partners_t == weights_r)
            )
        return flags

    def pair_all(self, targets: Ints, references: Ints, evidence: str, confidences: Floats) -> None:
        """Pair classes that can be paired, and none of them twice."""
        is_free = ~np.isin(targets, list(self.reserved_t))
        is_free &= ~np.isin(references, list(self.reserved_r))
        targets, references = targets[is_free], references[is_free]
        self.classes_t[targets], self.classes_r[references] = references, targets
        target_list = targets.tolist()
        self.evidence.update(dict.fromkeys(target_list, evidence))
        self.confidence.update(zip(target_list, confidences[is_free].tolist(), strict=True))

    def pair(self, t: int, r: int, evidence: str, confidence: float) -> bool:
        """Pair two classes, not their producers. Return False if :meth:`can_pair` is False."""
        if not self.can_pair(t, r) or t in self.reserved_t or r in self.reserved_r:
            return False
        self._add_pair(t, r, evidence, confidence)
        return True

    def pair_new_weights(self, new_weight: NewWeight) -> bool:
        """Pair the new weights of two paired weights; return whether they had no partner."""
        t, r = new_weight.target, new_weight.reference
        if not self.can_pair(t, r):
            return False
        self._add_pair(t, r, "update", NEW_WEIGHT)
        self.new_weights.append(new_weight)
        return True

    def pair_states(self, t: int, r: int) -> bool:
        """Pair two optimizer states; return whether they had no partner."""
        is_added = self.pair(t, r, "update", MOMENT)
        if self.classes_t[t] == r:
            self.states.append(t)
        return is_added

    def unpair(self, t: int, r: int) -> None:
        """Separate two paired classes, and their producers if these are a pair."""
        self.partners_t[t], self.partners_r[r] = -1, -1
        del self.evidence[t], self.confidence[t]
        op_t, op_r = self.producer_t[t], self.producer_r[r]
        if op_t >= 0 and op_r >= 0 and self.op_partners_t[op_t] == op_r:
            self.op_partners_t[op_t], self.op_partners_r[op_r] = -1, -1

    def _add_pair(self, t: int, r: int, evidence: str, confidence: float) -> None:
        self.partners_t[t], self.partners_r[r] = r, t
        self.evidence[t], self.confidence[t] = evidence, confidence

    def pair_ops(self, t: int, r: int) -> bool:
        """Pair two ops. Return False if one has another partner."""
        if self.op_partners_t[t] >= 0 or self.op_partners_r[r] >= 0:
            return bool(self.op_partners_t[t] == r)
        self.op_partners_t[t], self.op_partners_r[r] = r, t
        return True

    def pair_all_ops(self, targets: Ints, references: Ints) -> None:
        """Pair ops as :meth:`pair_ops` does, one pair after the other."""
        is_open = (self.ops_t[targets] < 0) & (self.ops_r[references] < 0)
        pairs = targets[is_open] * len(self.ops_r) + references[is_open]
        pairs = pairs[np.sort(np.unique(pairs, return_index=True)[1])]
        targets, references = np.divmod(pairs, max(1, len(self.ops_r)))
        # most ops are in one pair, whose turn does not matter
        is_only = np.bincount(targets)[targets] == 1
        is_only &= np.bincount(references)[references] == 1
        self.ops_t[targets[is_only]] = references[is_only]
        self.ops_r[references[is_only]] = targets[is_only]
        other_pairs = zip(targets[~is_only].tolist(), references[~is_only].tolist(), strict=True)
        for t, r in other_pairs:
            self.pair_ops(t, r)

    def count_kind_pairs(self, *, with_gradients: bool = True) -> Counter[tuple[str, str]]:
        """Count, over the pairs by value, how often two operator kinds produced the same value.

        Without gradients, those of modules on both sides still count: the forward result of a
        module is produced by an op inside it.
        """
        targets = np.array([t for t, name in self.evidence.items() if name == "value"], dtype=int)
        producers_t = self.target.producers[targets]
        producers_r = self.reference.producers[self.classes_t[targets]]
        is_counted = (producers_t >= 0) & (producers_r >= 0)
        if not with_gradients:
            is_gradient = (self.target.classes["phase"] == BACKWARD).to_numpy()[targets]
            are_modules = self.target.is_module[producers_t]
            are_modules &= self.reference.is_module[producers_r]
            is_counted &= ~is_gradient | are_modules
        codes_t, names_t = self.kind_codes_t
        codes_r, names_r = self.kind_codes_r
        pair_codes = codes_t[producers_t[is_counted]] * len(names_r)
        pair_codes += codes_r[producers_r[is_counted]]
        numbers, distinct_codes = pd.factorize(pair_codes)  # in order of appearance
        counts = np.bincount(numbers, minlength=len(distinct_codes)).tolist()
        kind_pairs = [
            (names_t[code // len(names_r)], names_r[code % len(names_r)])
            for code in distinct_codes.tolist()
        ]
        return Counter(dict(zip(kind_pairs, counts, strict=True)))


def number_kinds(kinds: Sequence[str]) -> tuple[Ints, list[str]]:
    """Return (ops,) a number for the kind of each op, and the kind of each number."""
    codes, names = pd.factorize(np.array(kinds, dtype=object))
    return codes, names.tolist()


def _flag_gradient_terms(flow: Flow, kinds: Sequence[str]) -> tuple[Flags, Flags]:
    """Return (classes,) named gradients of parameters, and gradients only added to others."""
    is_named: Flags = (flow.classes["gradient_of"] != "").to_numpy()
    is_backward = (flow.classes["phase"] == BACKWARD).to_numpy()
    is_sum = np.array([kind == _SUM_KIND for kind in kinds], dtype=bool) & ~flow.is_layout
    sums = {op for op in np.flatnonzero(is_sum).tolist() if flow.phases[op] == BACKWARD}
    added_values = {value for op in sums for value in flow.operands[op] if is_backward[value]}
    is_term = np.zeros(len(is_named), dtype=bool)
    for value in added_values - set(np.flatnonzero(is_named).tolist()):
        ops = [
            op for op in flow.users[value] if flow.phases[op] == BACKWARD and not flow.is_layout[op]
        ]
        is_term[value] = all(
            op in sums
            and all(flow.sizes[result] == flow.sizes[value] for result in flow.writes[op])
            for op in ops
        )
    return is_named, is_term
