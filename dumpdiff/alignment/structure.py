"""Structural evidence: ops of equal kind that read the same values are the same op.

This is congruence closure over the two dataflow graphs. It starts from the existing pairs and works
in two directions: from inputs to outputs, which carries the match across a divergence, and from
paired ops to the inputs they have in common, which finds the parameter or batch that differs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import is_discrete
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from . import confidence
from .assignment import solve_assignment
from .lineage import find_lineage
from .matches import Matching
from .values import compute_distances

#: (kind, phase, known inputs as target classes, number of unknown inputs) of an op.
Signature = tuple[int, str, tuple[int, ...], int]

#: Ops of one signature on a side that are still assigned to each other. With more of them, what
#: they read does not tell them apart.
_MAX_CANDIDATES = 64
#: Relative error of the exponentials of a probability's logarithms, by rounding and print.
_MAX_EXPONENTIAL_ERROR = 1e-4
#: Largest number whose exponential float64 holds.
_MAX_LOGARITHM = 709.0
#: How often two kinds must produce the same value before they count as equivalent.
_MIN_LEARNED = 2
#: Cost of pairing two ops whose outputs cannot be the same ...
_IMPOSSIBLE_COST = 1e9
#: ... which exceeds this limit, and the largest cost of outputs that can.
_POSSIBLE_COST = 1e6
_MAX_DISTANCE = 1e3
#: Cost of the difference in relative order: it decides between equal distances only.
_ORDER_COST = 1e-9
#: Distance up to which an assigned output counts as close to its partner.
_CLOSE_DISTANCE = 1
#: Tolerances up to which outputs are paired if the sides have different numbers of candidates.
_UNEQUAL_COUNT_TOLERANCES = 16


def pair_by_structure(matching: Matching) -> None:
    """Pair all ops and classes that the existing pairs imply.

    Ops of which only some inputs are known are used only when complete evidence gives no more
    pairs.
    """
    _pair_producers(matching)
    closure = _Closure(matching, find_equivalent_kinds(matching))
    closure.run(complete=True)
    while closure.run(complete=False):
        closure.run(complete=True)


def pair_idle_ops(matching: Matching) -> None:
    """Pair ops that produce no new value: backward records of paired calls, and layout ops."""
    _pair_backward_records(matching)
    target, reference = matching.target, matching.reference
    open_ops_r: dict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
    for op in np.flatnonzero(matching.ops_r < 0).tolist():
        values = tuple(int(matching.classes_r[value]) for value in reference.reads[op])
        open_ops_r[matching.kinds_r[op], reference.phases[op], values].append(op)
    for op in np.flatnonzero(matching.ops_t < 0).tolist():
        values = target.reads[op]
        partners = open_ops_r.get((matching.kinds_t[op], target.phases[op], values))
        if values and partners:
            matching.pair_ops(op, partners.pop(0))


def _pair_backward_records(matching: Matching) -> None:
    calls_t = matching.target.trace.ops["forward"].to_numpy()
    calls_r = matching.reference.trace.ops["forward"].to_numpy()
    records_r = np.flatnonzero(calls_r >= 0)
    record_of_call = np.full(len(calls_r) + 1, -1)  # the last one: no call
    record_of_call[calls_r[records_r]] = records_r
    records_t = np.flatnonzero(calls_t >= 0)
    partners = record_of_call[matching.ops_t[calls_t[records_t]]]
    has_partner = partners >= 0
    matching.pair_all_ops(records_t[has_partner], partners[has_partner])


def find_equivalent_kinds(matching: Matching) -> tuple[list[int], list[int]]:
    """Return a number per op, equal for operator kinds that compute the same.

    Kinds are equivalent by the rules, or if this pair of dumps teaches it, see
    :func:`_number_kinds`. Gradients that agree do not show that their forward ops compute the same.
    """
    forward_numbers = _number_kinds(matching, matching.count_kind_pairs(with_gradients=False))
    other_numbers = _number_kinds(matching, matching.count_kind_pairs())
    numbers_of_sides: list[list[int]] = []
    for flow, (codes, kinds) in (
        (matching.target, matching.kind_codes_t),
        (matching.reference, matching.kind_codes_r),
    ):
        is_forward = flow.flag_phase(FORWARD)
        in_forward = np.array([forward_numbers[kind] for kind in kinds], dtype=int)
        elsewhere = np.array([other_numbers[kind] for kind in kinds], dtype=int)
        numbers_of_sides.append(np.where(is_forward, in_forward[codes], elsewhere[codes]).tolist())
    numbers_t, numbers_r = numbers_of_sides
    return numbers_t, numbers_r


def _number_kinds(matching: Matching, counts: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return a number of each kind, equal for kinds that are equivalent by these counts.

    They produced the same value at least twice, and in more than half of the cases in which either
    produced an agreed value.
    """
    totals_t: Counter[str] = Counter()
    totals_r: Counter[str] = Counter()
    for (kind_t, kind_r), count in counts.items():
        totals_t[kind_t] += count
        totals_r[kind_r] += count
    # Signatures are sorted by these numbers. Any fixed order will do, a set has none: equal dumps
    # must give equal results. This one keeps the figures of the localization benchmark.
    names = {kind: kind for kind in sorted({*matching.kinds_t, *matching.kinds_r}, reverse=True)}
    for (kind_t, kind_r), count in sorted(counts.items(), key=_rank_kind_pair):
        is_frequent = count >= _MIN_LEARNED
        is_frequent &= 2 * count > totals_t[kind_t] and 2 * count > totals_r[kind_r]
        is_unmerged = names[kind_r] == kind_r and names[kind_t] == kind_t
        if kind_t != kind_r and is_frequent and is_unmerged:
            names[min(kind_t, kind_r)] = max(kind_t, kind_r)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    return {kind: numbers[name] for kind, name in names.items()}


def _rank_kind_pair(item: tuple[tuple[str, str], int]) -> tuple[int, list[str]]:
    """Return the most frequent kinds first, in an order that does not depend on the sides."""
    kinds, count = item
    return -count, sorted(kinds)


def _pair_producers(matching: Matching) -> None:
    """Pair the producers of paired values: those of equal kind first, then the others."""
    ops_t, ops_r = matching.list_open_producers()
    numbers = {name: number for number, name in enumerate(matching.kind_codes_t[1])}
    numbers_r = np.array([numbers.get(name, -1) for name in matching.kind_codes_r[1]], dtype=int)
    kinds_t, kinds_r = matching.kind_codes_t[0][ops_t], matching.kind_codes_r[0][ops_r]
    is_same_kind = kinds_t == numbers_r[kinds_r] if len(ops_t) else np.zeros(0, dtype=bool)
    for is_chosen in (is_same_kind, ~is_same_kind):
        matching.pair_all_ops(ops_t[is_chosen], ops_r[is_chosen])


class _Closure:
    """Work list of ops whose inputs became known, by side, and buckets of ops of one signature.

    A side is 0 for the target and 1 for the reference.
    """

    def __init__(self, matching: Matching, kinds: tuple[list[int], list[int]]) -> None:
        self.matching = matching
        self.kinds = kinds
        self.flows = (matching.target, matching.reference)
        self.calls = tuple(flow.trace.ops["forward"].tolist() for flow in self.flows)
        self.phases = tuple(flow.trace.ops["phase"].tolist() for flow in self.flows)
        self.classes = (matching.partners_t, matching.partners_r)
        self.sizes = (matching.prints_t.size.data, matching.prints_r.size.data)
        self.ops = (matching.op_partners_t, matching.op_partners_r)
        self.is_informative = (
            (matching.prints_t.evidence > 0).data,
            (matching.prints_r.evidence > 0).data,
        )
        self.buckets: dict[Signature, tuple[set[int], set[int]]] = defaultdict(
            lambda: (set(), set())
        )
        self.dirty_ops: tuple[set[int], set[int]] = (set(), set())
        self._mark_half_known_ops(complete=True)
        has_open_inputs = matching.target.flag_readers(matching.classes_t < 0)
        paired_ops = np.flatnonzero(matching.ops_t >= 0)
        has_open_partner = np.zeros(len(matching.ops_t), dtype=bool)
        has_open_partner[paired_ops] = matching.reference.flag_readers(matching.classes_r < 0)[
            matching.ops_t[paired_ops]
        ]
        for t, r in matching.list_op_pairs(has_open_inputs & has_open_partner):
            self._pair_remaining_inputs(t, r)

    def run(self, complete: bool) -> bool:
        """Pair what follows from the pairs so far; return whether anything was paired.

        With ``complete`` only ops are paired all of whose inputs are known. Without it the run ends
        after the first round with a result.
        """
        progress = False
        if not complete:
            self._mark_half_known_ops(complete=False)
        while self.dirty_ops[0] or self.dirty_ops[1]:
            for signature in sorted(self._fill_buckets(complete), key=self._rank_signature):
                progress |= self._resolve(signature, complete)
            if progress and not complete:
                return True
        return progress

    def _rank_signature(self, signature: Signature) -> tuple[object, ...]:
        """Return what signatures are sorted by; it does not depend on which side is the target."""
        kind, phase, known_inputs, n_unknown = signature
        matching = self.matching
        places = [matching.compute_place(t, matching.partners_t[t]) for t in known_inputs]
        return kind, phase, sorted(places), n_unknown

    def _fill_buckets(self, complete: bool) -> set[Signature]:
        """Move the dirty ops into the buckets of their signatures; return those signatures."""
        signatures: set[Signature] = set()
        for side in (0, 1):
            for op in self.dirty_ops[side]:
                if self.ops[side][op] >= 0:
                    continue
                signature = self._compute_signature(side, op, complete)
                if signature is not None:
                    self.buckets[signature][side].add(op)
                    signatures.add(signature)
            self.dirty_ops[side].clear()
        return signatures

    def _list_open_ops(self, side: int, signature: Signature, complete: bool) -> list[int]:
        """Return the unpaired ops of a bucket that still have its signature, in order."""
        ops = [op for op in self.buckets[signature][side] if self.ops[side][op] < 0]
        if signature[3]:  # where all inputs are known, the signature does not change any more
            ops = [op for op in ops if self._compute_signature(side, op, complete) == signature]
        return sorted(ops)

    def _mark_half_known_ops(self, complete: bool) -> None:
        """Mark the unpaired ops that have a signature by now, see :meth:`_compute_signature`."""
        for side, flow in enumerate(self.flows):
            is_known = np.asarray(self.classes[side]) >= 0
            has_signature = flow.flag_readers(is_known & np.asarray(self.is_informative[side]))
            has_signature &= flow.writes.counts > 0
            if complete:
                has_signature &= ~flow.flag_readers(~is_known)
            is_open = np.asarray(self.ops[side]) < 0
            self.dirty_ops[side].update(np.flatnonzero(is_open & has_signature).tolist())

    def _compute_signature(self, side: int, op: int, complete: bool) -> Signature | None:
        """Return the signature of an op, None if its known inputs carry no information."""
        flow = self.flows[side]
        if not flow.writes[op]:
            return None
        known_inputs, n_unknown, is_informative = [], 0, False
        for value in flow.reads[op]:
            partner = self.classes[side][value]
            if partner < 0:
                n_unknown += 1
            else:
                known_inputs.append(value if side == 0 else partner)
                is_informative = is_informative or bool(self.is_informative[side][value])
        if not is_informative or (n_unknown and complete):
            return None
        kind, phase = self.kinds[side][op], self.phases[side][op]
        return (kind, phase, tuple(sorted(known_inputs)), n_unknown)

    def _resolve(self, signature: Signature, complete: bool) -> bool:
        """Pair the ops of one signature; return whether any were paired.

        With partial evidence there must be one op on each side; the record of a module with the
        same result is no other op, if both sides have the op itself.
        """
        ops_t = self._list_open_ops(0, signature, complete)
        ops_r = self._list_open_ops(1, signature, complete)
        if not complete and self._has_op(0, ops_t) and self._has_op(1, ops_r):
            ops_t, ops_r = self._leave_out_modules(0, ops_t), self._leave_out_modules(1, ops_r)
        if len(ops_t) == len(ops_r) == 1:
            if not complete and self._read_others(ops_t[0], ops_r[0]):
                return False
            level = confidence.COMPLETE_INPUTS if complete else confidence.PARTIAL_INPUTS
            return self._accept(ops_t[0], ops_r[0], level)
        if not complete or not ops_t or not ops_r:
            return False
        return self._assign(ops_t, ops_r)

    def _read_others(self, t: int, r: int) -> bool:
        """Return whether what two ops read besides partners cannot be partners."""
        if self._have_other_lineages(t, r):
            return True
        inputs = self._find_unpaired_inputs(t, r)
        return any(self._is_other_quantity(*values) for values in inputs)

    def _have_other_lineages(self, t: int, r: int) -> bool:
        """Return whether one op reads a value and what follows from it, the other one does not.

        A gelu that is written out multiplies x by what follows from x. The product behind it has
        the same kind, but multiplies its result by another value. The unknown inputs of the two ops
        follow from no common value then.
        """
        reads_both, lineages = [], []
        for side, op in enumerate((t, r)):
            flow, partners = self.flows[side], np.asarray(self.classes[side])
            lineage: set[int] = set()
            for value in flow.reads[op]:
                if partners[value] < 0:
                    lineage |= find_lineage(flow, partners, value)
            reads_both.append(not lineage.isdisjoint(flow.reads[op]))
            lineages.append({value if side == 0 else int(partners[value]) for value in lineage})
        has_lineages = bool(lineages[0]) and bool(lineages[1])
        is_disjoint = lineages[0].isdisjoint(lineages[1])
        return has_lineages and is_disjoint and reads_both[0] != reads_both[1]

    def _has_op(self, side: int, ops: list[int]) -> bool:
        """Return whether one of the records is that of an op, not of a module."""
        return any(self.flows[side].levels[op] == "op" for op in ops)

    def _leave_out_modules(self, side: int, ops: list[int]) -> list[int]:
        """Return the ops without the records of modules that have the result of another of them."""
        flow = self.flows[side]
        results = [set(flow.writes[op]) for op in ops if flow.levels[op] == "op"]
        return [
            op
            for op in ops
            if flow.levels[op] == "op" or not any(set(flow.writes[op]) <= own for own in results)
        ]

    def _assign(self, ops_t: list[int], ops_r: list[int]) -> bool:
        """Assign several ops of one signature to each other; return whether any were paired.

        With equal counts every op gets the partner of the closest output, by order if outputs are
        equally close. With unequal counts only outputs of about equal values are paired.
        """
        if max(len(ops_t), len(ops_r)) > _MAX_CANDIDATES:
            return False
        costs = self._compute_costs(ops_t, ops_r)
        limit = _UNEQUAL_COUNT_TOLERANCES * self.matching.tolerance
        if len(ops_t) == len(ops_r):
            limit = _POSSIBLE_COST
        places_t, places_r = np.linspace(0, 1, len(ops_t)), np.linspace(0, 1, len(ops_r))
        order_costs = _ORDER_COST * np.abs(np.subtract.outer(places_t, places_r))
        rows, columns = solve_assignment(np.minimum(costs, _MAX_DISTANCE) + order_costs)
        progress = False
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            cost = costs[row, column]
            if cost > limit:
                continue
            is_close = cost < _CLOSE_DISTANCE
            level = confidence.CLOSE_OUTPUT if is_close else confidence.EXECUTION_ORDER
            progress |= self._accept(ops_t[row], ops_r[column], level)
        return progress

    def _compute_costs(self, ops_t: list[int], ops_r: list[int]) -> Floats:
        """Return (target ops, reference ops) the distances of the first outputs of ops.

        A large cost stands where two ops cannot be a pair.
        """
        matching = self.matching
        costs = np.full((len(ops_t), len(ops_r)), _IMPOSSIBLE_COST)
        compared: list[tuple[int, int, int, int]] = []  # row, column and the outputs of an op pair
        for row, t in enumerate(ops_t):
            for column, r in enumerate(ops_r):
                if len(self.flows[0].writes[t]) != len(self.flows[1].writes[r]):
                    continue
                first_t, first_r = self._list_outputs(t, r)[0]
                if self.sizes[0][first_t] != self.sizes[1][first_r]:
                    continue
                partner = self.classes[0][first_t]
                if partner < 0 and self.classes[1][first_r] < 0:
                    compared.append((row, column, first_t, first_r))
                elif partner == first_r:
                    costs[row, column] = 0.0
        if compared:
            rows, columns, values_t, values_r = np.array(compared).T
            prints_t, prints_r = matching.prints_t, matching.prints_r
            distances = compute_distances(prints_t, values_t, prints_r, values_r)
            costs[rows, columns] = np.minimum(distances, _MAX_DISTANCE)
        return costs

    def _accept(self, t: int, r: int, level: float) -> bool:
        """Pair two ops, their outputs and remaining inputs; return whether that was possible."""
        matching = self.matching
        outputs = self._list_outputs(t, r)
        if self._has_other_gradient(t, r) or self._has_other_call(t, r):
            return False
        for output_t, output_r in outputs:
            if self.sizes[0][output_t] != self.sizes[1][output_r]:
                return False
            if self.classes[0][output_t] not in (-1, output_r):
                return False
            if self.classes[1][output_r] not in (-1, output_t):
                return False
        if not matching.pair_ops(t, r):
            return False
        for output_t, output_r in outputs:
            if matching.pair(output_t, output_r, "structure", level):
                self._mark_consumers(output_t, output_r)
        if level != confidence.COMPLETE_INPUTS:  # else none remains
            self._pair_remaining_inputs(t, r)
        return True

    def _list_outputs(self, t: int, r: int) -> list[tuple[int, int]]:
        """Return the outputs of two ops as pairs, in order.

        If both have several, as the numbers and the places of minima, those of whole numbers and
        the others are each in order: one framework returns the places first, the other one last.
        """
        outputs_t, outputs_r = self.flows[0].writes[t], self.flows[1].writes[r]
        if len(outputs_t) == len(outputs_r) > 1:
            flags_t, flags_r = self._flag_discrete(0, outputs_t), self._flag_discrete(1, outputs_r)
            if flags_t != flags_r and sum(flags_t) == sum(flags_r):
                outputs_t = _sort_by_flag(outputs_t, flags_t)
                outputs_r = _sort_by_flag(outputs_r, flags_r)
        return list(zip(outputs_t, outputs_r, strict=False))

    def _flag_discrete(self, side: int, values: Sequence[int]) -> list[bool]:
        dtypes = self.flows[side].list_column("dtype")
        return [is_discrete(str(dtypes[value])) for value in values]

    def _has_other_call(self, t: int, r: int) -> bool:
        """Return whether two backward records are of forward calls, one of which has a partner.

        Two gradients may be multiplied by the same value: that of a factor and that of what was
        computed from it, if one side passes the gradient on as it is.
        """
        call_t, call_r = self.calls[0][t], self.calls[1][r]
        if call_t < 0 or call_r < 0:
            return False
        return self.ops[0][call_t] not in (-1, call_r) or self.ops[1][call_r] not in (-1, call_t)

    def _pair_remaining_inputs(self, t: int, r: int) -> None:
        """Pair the unpaired inputs of two paired ops if there is no choice, then their producers.

        Inputs of different phases are not paired: a count of tokens and a gradient are not the
        same. Nor are a flag and a number that is added. In the optimizer, inputs are not paired if
        their producers are of different kinds, because an update rule can be written in many ways.
        Neither are the gradients of a module's inputs and of an op inside it.
        """
        op_pairs = [(t, r)]
        while op_pairs:
            t, r = op_pairs.pop()
            if self.kinds[0][t] != self.kinds[1][r]:
                continue
            for input_t, input_r in self._find_unpaired_inputs(t, r):
                if self.phases[0][t] == OPTIMIZER and not self._has_same_producer_kind(
                    input_t, input_r
                ):
                    continue
                if self._get_phase(0, input_t) != self._get_phase(1, input_r):
                    continue
                if self._is_other_quantity(input_t, input_r):
                    continue
                producer_t = int(self.flows[0].producers[input_t])
                producer_r = int(self.flows[1].producers[input_r])
                has_producers = min(producer_t, producer_r) >= 0
                if has_producers and self._has_other_gradient(producer_t, producer_r):
                    continue
                if not self.matching.pair(
                    input_t, input_r, "structure", confidence.REMAINING_INPUT
                ):
                    continue
                self._mark_consumers(input_t, input_r)
                if has_producers and self.matching.pair_ops(producer_t, producer_r):
                    op_pairs.append((producer_t, producer_r))

    def _get_phase(self, side: int, value: int) -> str:
        return str(self.flows[side].list_column("phase")[value])

    def _is_other_quantity(self, t: int, r: int) -> bool:
        """Return whether one value is a mask or a count, and the other one has other numbers.

        A flag that hides a score is not the number that is added to hide it. Nor is a probability
        its logarithm, or a mask the other side's complement of this mask.
        """
        dtypes = [
            str(flow.list_column("dtype")[value])
            for flow, value in zip(self.flows, (t, r), strict=True)
        ]
        prints_t, prints_r = self.matching.prints_t, self.matching.prints_r
        extremes_t = prints_t.low[t], prints_t.high[t]
        extremes_r = prints_r.low[r], prints_r.high[r]
        if _are_exponentials(extremes_t, extremes_r) or _are_exponentials(extremes_r, extremes_t):
            return True
        if extremes_t == extremes_r == (0, 1) and self._has_mask_elsewhere(t, r):
            return True
        return is_discrete(dtypes[0]) != is_discrete(dtypes[1]) and extremes_t != extremes_r

    def _has_mask_elsewhere(self, t: int, r: int) -> bool:
        """Return whether two masks differ, and an open value of the other side is one of them."""
        prints, values = (self.matching.prints_t, self.matching.prints_r), (t, r)
        size = self.sizes[0][t]  # which the dump may say is 0
        if abs(prints[0].mean[t] - prints[1].mean[r]) * size < 0.5:  # not even one element differs
            return False
        for side, own in enumerate(prints):
            other, value = prints[1 - side], values[side]
            is_equal = np.asarray(self.classes[1 - side]) < 0
            is_equal &= (other.size == own.size[value]) & (other.low == 0) & (other.high == 1)
            is_equal &= np.abs(other.mean - own.mean[value]) * size < 0.5
            if is_equal.any():
                return True
        return False

    def _has_other_gradient(self, t: int, r: int) -> bool:
        """Return whether one op is a module's backward pass, the other that of an op inside it.

        The module and its last op have one result, but not one input, so their kinds are no
        evidence for equal gradients.
        """
        if self.phases[0][t] != BACKWARD or self.matching.kinds_t[t] == self.matching.kinds_r[r]:
            return False
        return self.flows[0].levels[t] != self.flows[1].levels[r]

    def _has_same_producer_kind(self, value_t: int, value_r: int) -> bool:
        """Return whether both producers are of equal kind, or neither value has one."""
        producer_t = int(self.flows[0].producers[value_t])
        producer_r = int(self.flows[1].producers[value_r])
        if producer_t < 0 or producer_r < 0:
            return producer_t < 0 and producer_r < 0
        return self.kinds[0][producer_t] == self.kinds[1][producer_r]

    def _find_unpaired_inputs(self, t: int, r: int) -> list[tuple[int, int]]:
        """Return the inputs of two ops without a partner, in order, as pairs.

        The list is empty if their number or sizes leave a choice. It is empty, too, if one op reads
        a paired value that the other does not: a product with bias is not an addition of a bias.
        An input that gives only a shape is none: any value of that shape may have been there.
        """
        reads_t, reads_r = self.flows[0].operands[t], self.flows[1].operands[r]
        unpaired_t = [value for value in reads_t if self.classes[0][value] < 0]
        if not unpaired_t:
            return []
        unpaired_r = [value for value in reads_r if self.classes[1][value] < 0]
        if len(unpaired_t) != len(unpaired_r):
            return []
        paired_inputs_t = {self.classes[0][value] for value in reads_t} - {-1}
        paired_inputs_r = {value for value in reads_r if self.classes[1][value] >= 0}
        if paired_inputs_t != paired_inputs_r:
            return []
        if len(unpaired_t) > 1:
            sizes_t = self.matching.prints_t.size[unpaired_t].tolist()
            sizes_r = self.matching.prints_r.size[unpaired_r].tolist()
            if sizes_t != sizes_r or len(set(sizes_t)) < len(sizes_t):
                return []
        return list(zip(unpaired_t, unpaired_r, strict=True))

    def _mark_consumers(self, t: int, r: int) -> None:
        """Mark the unpaired consumers of two newly paired classes."""
        for side, value in enumerate((t, r)):
            partners = self.ops[side]
            consumers = self.flows[side].consumers[value]
            self.dirty_ops[side].update(op for op in consumers if partners[op] < 0)


def _sort_by_flag(values: Sequence[int], flags: Sequence[bool]) -> tuple[int, ...]:
    """Return the values without a flag, then those with one, each in order."""
    return tuple(value for _, value in sorted(zip(flags, values, strict=True), key=itemgetter(0)))


def _are_exponentials(extremes: tuple[float, float], logarithms: tuple[float, float]) -> bool:
    """Return whether the extremes of one value are the exponentials of those of another one."""
    if not (extremes[0] > 0 and max(logarithms) < _MAX_LOGARITHM and math.isfinite(extremes[1])):
        return False
    return all(
        abs(math.exp(logarithm) - extreme) <= _MAX_EXPONENTIAL_ERROR * extreme
        for extreme, logarithm in zip(extremes, logarithms, strict=True)
    )
