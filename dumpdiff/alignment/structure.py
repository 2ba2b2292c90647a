"""Structural evidence: ops of one kind that read the same values are the same op, whatever came out of them.

Congruence closure over the two dataflow graphs. It starts from what is paired already and works outward: down from
inputs to outputs, which carries the match across a divergence, and up from matched ops to the inputs they have in
common, which finds the parameter or batch that differs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from ..model.trace import OPTIMIZER
from .matches import Matching

Signature = tuple[int, str, tuple[int, ...], int]
_MOST = 64  # ops of one signature on a side: more cannot be told apart by what they read


def close(matching: Matching) -> None:
    """Pair all ops and classes that the pairs so far imply; partial evidence only where complete evidence runs dry."""
    _pair_producers(matching)
    kinds = equivalent_kinds(matching)
    closure = _Closure(matching, kinds)
    closure.run(complete=True)
    while closure.run(complete=False):
        closure.run(complete=True)


def pair_idle_ops(matching: Matching) -> None:
    """Pair ops that make no value of their own: backward records of paired calls, layout ops that read the same."""
    forward_t, forward_r = (
        flow.trace.ops["forward"].to_numpy() for flow in (matching.target, matching.reference)
    )
    calls = {int(call): op for op, call in enumerate(forward_r.tolist()) if call >= 0}
    for op, call in enumerate(forward_t.tolist()):
        if (
            call >= 0
            and matching.ops_t[call] >= 0
            and (partner := calls.get(int(matching.ops_t[call]))) is not None
        ):
            matching.pair_ops(op, partner)
    reading: dict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
    for op in np.flatnonzero(matching.ops_r < 0).tolist():
        values = tuple(int(matching.classes_r[v]) for v in matching.reference.reads[op])
        reading[matching.kinds_r[op], matching.reference.phases[op], values].append(op)
    for op in np.flatnonzero(matching.ops_t < 0).tolist():
        values = matching.target.reads[op]
        partners = reading.get((matching.kinds_t[op], matching.target.phases[op], values))
        if values and partners:
            matching.pair_ops(op, partners.pop(0))


def equivalent_kinds(matching: Matching) -> tuple[list[int], list[int]]:
    """Per op a number that is equal for operator kinds that do the same: by the rules, or by what this pair taught.

    A target kind and a reference kind are learned to be equal if they made the same value at least twice, and in more
    than half of the cases in which either made an agreed value.
    """
    counts = matching.learned()
    total_t: Counter[str] = Counter()
    total_r: Counter[str] = Counter()
    for (t, r), count in counts.items():
        total_t[t] += count
        total_r[r] += count
    same = {kind: kind for kind in {*matching.kinds_t, *matching.kinds_r}}
    for (t, r), count in counts.most_common():
        if (
            t != r
            and count >= 2
            and 2 * count > total_t[t]
            and 2 * count > total_r[r]
            and same[r] == r
            and same[t] == t
        ):
            same[r] = t
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(same.values()))}
    return [numbers[same[k]] for k in matching.kinds_t], [
        numbers[same[k]] for k in matching.kinds_r
    ]


def _pair_producers(matching: Matching) -> None:
    """The makers of a value that both sides have are the same op: those of one kind first, then those of another."""
    pairs = [
        (t, int(matching.classes_t[t])) for t in np.flatnonzero(matching.classes_t >= 0).tolist()
    ]
    makers = [(int(matching.producer_t[t]), int(matching.producer_r[r])) for t, r in pairs]
    for same_kind in (True, False):
        for t, r in makers:
            if t >= 0 and r >= 0 and (matching.kinds_t[t] == matching.kinds_r[r]) == same_kind:
                matching.pair_ops(t, r)


class _Closure:
    """Work list of ops whose inputs became known, by side; buckets of ops that read the same."""

    def __init__(self, matching: Matching, kinds: tuple[list[int], list[int]]) -> None:
        self.matching = matching
        self.kinds = kinds
        self.flows = (matching.target, matching.reference)
        self.phases = tuple(flow.trace.ops["phase"].tolist() for flow in self.flows)
        self.classes = (matching.classes_t, matching.classes_r)
        self.ops = (matching.ops_t, matching.ops_r)
        self.telling = (matching.prints_t.evidence > 0, matching.prints_r.evidence > 0)
        self.buckets: dict[Signature, tuple[set[int], set[int]]] = defaultdict(
            lambda: (set(), set())
        )
        self.dirty: tuple[set[int], set[int]] = (set(), set())
        for t in np.flatnonzero(matching.classes_t >= 0).tolist():
            self._touch(t, int(matching.classes_t[t]))
        for t in np.flatnonzero(matching.ops_t >= 0).tolist():
            self._upward(t, int(matching.ops_t[t]))

    def run(self, complete: bool) -> bool:
        """Pair what follows; with ``complete``, only ops all of whose inputs are known. True if anything was paired."""
        progress = False
        if not complete:
            for side in (0, 1):
                self.dirty[side].update(self._half_known(side))
        while self.dirty[0] or self.dirty[1]:
            touched: set[Signature] = set()
            for side in (0, 1):
                for op in self.dirty[side]:
                    signature = self._signature(side, op, complete)
                    if signature is not None and self.ops[side][op] < 0:
                        self.buckets[signature][side].add(op)
                        touched.add(signature)
                self.dirty[side].clear()
            for signature in sorted(touched):
                ops_t = [
                    op
                    for op in self.buckets[signature][0]
                    if self._still(0, op, signature, complete)
                ]
                ops_r = [
                    op
                    for op in self.buckets[signature][1]
                    if self._still(1, op, signature, complete)
                ]
                if ops_t and ops_r and (complete or len(ops_t) == len(ops_r) == 1):
                    progress |= self._resolve(sorted(ops_t), sorted(ops_r), complete)
            if progress and not complete:
                return True
        return progress

    def _half_known(self, side: int) -> Iterable[int]:
        classes = self.classes[side]
        for op, reads in enumerate(self.flows[side].reads):
            if self.ops[side][op] < 0 and any(classes[value] >= 0 for value in reads):
                yield op

    def _still(self, side: int, op: int, signature: Signature, complete: bool) -> bool:
        return bool(self.ops[side][op] < 0) and self._signature(side, op, complete) == signature

    def _signature(self, side: int, op: int, complete: bool) -> Signature | None:
        """(kind, phase, known inputs by the target's class, number of unknown inputs); None if that says too little."""
        flow = self.flows[side]
        if not flow.writes[op]:
            return None
        known, unknown, telling = [], 0, False
        for value in flow.reads[op]:
            partner = int(self.classes[side][value])
            if partner < 0:
                unknown += 1
            else:
                known.append(value if side == 0 else partner)
                telling |= bool(self.telling[side][value])
        if not telling or (unknown and complete):
            return None
        return (self.kinds[side][op], self.phases[side][op], tuple(sorted(known)), unknown)

    def _resolve(self, ops_t: list[int], ops_r: list[int], complete: bool) -> bool:
        if len(ops_t) > _MOST or len(ops_r) > _MOST:
            return False
        if len(ops_t) == len(ops_r) == 1:
            return self._accept(ops_t[0], ops_r[0], 0.85 if complete else 0.7)
        from scipy.optimize import linear_sum_assignment  # a quarter of a second, and rarely needed

        cost = np.array([[self._gap(t, r) for r in ops_r] for t in ops_t])
        # unequal counts: only what the values tell; equal counts: the nearest values, else the order
        limit = 1e6 if len(ops_t) == len(ops_r) else 16 * self.matching.tolerance
        order = np.abs(
            np.subtract.outer(np.linspace(0, 1, len(ops_t)), np.linspace(0, 1, len(ops_r)))
        )
        rows, columns = linear_sum_assignment(np.minimum(cost, 1e3) + 1e-9 * order)
        progress = False
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if cost[row, column] <= limit:
                progress |= self._accept(
                    ops_t[row], ops_r[column], 0.75 if cost[row, column] < 1 else 0.6
                )
        return progress

    def _gap(self, t: int, r: int) -> float:
        outputs_t, outputs_r = self.flows[0].writes[t], self.flows[1].writes[r]
        sizes = self.matching.prints_t.size, self.matching.prints_r.size
        if len(outputs_t) != len(outputs_r) or sizes[0][outputs_t[0]] != sizes[1][outputs_r[0]]:
            return 1e9
        partner = self.matching.classes_t[outputs_t[0]]
        if partner >= 0 or self.matching.classes_r[outputs_r[0]] >= 0:
            return 0.0 if partner == outputs_r[0] else 1e9
        return min(self.matching.distance(outputs_t[0], outputs_r[0]), 1e3)

    def _accept(self, t: int, r: int, confidence: float) -> bool:
        outputs_t, outputs_r = self.flows[0].writes[t], self.flows[1].writes[r]
        sizes_t = [self.matching.prints_t.size[value] for value in outputs_t]
        sizes_r = [self.matching.prints_r.size[value] for value in outputs_r]
        if sizes_t[: len(sizes_r)] != sizes_r[: len(sizes_t)]:
            return False
        taken = [(self.classes[0][a], b) for a, b in zip(outputs_t, outputs_r, strict=False)]
        if any(partner not in (-1, b) for partner, b in taken) or not self.matching.pair_ops(t, r):
            return False
        for a, b in zip(outputs_t, outputs_r, strict=False):
            if self.matching.pair(a, b, "structure", confidence):
                self._touch(a, b)
        self._upward(t, r)
        return True

    def _upward(self, t: int, r: int) -> None:
        """Inputs of one op pair left over on both sides are the same, if there is no choice; their makers likewise.

        Not if they belong to two phases, as a count of tokens and a gradient do; nor in the optimizer if their makers
        are of two kinds: an update rule is written in many ways.
        """
        makers = [(t, r)]
        while makers:
            t, r = makers.pop()
            if self.kinds[0][t] != self.kinds[1][r]:
                continue
            for a, b in self._left_over(t, r):
                if self.phases[0][t] == OPTIMIZER and not self._same_maker(a, b):
                    continue
                if self._phase(0, a) != self._phase(1, b):
                    continue
                if self.matching.pair(a, b, "structure", 0.7):
                    self._touch(a, b)
                    above = int(self.flows[0].producers[a]), int(self.flows[1].producers[b])
                    if min(above) >= 0 and self.matching.pair_ops(*above):
                        makers.append(above)

    def _phase(self, side: int, value: int) -> str:
        return str(self.flows[side].column("phase")[value])

    def _same_maker(self, a: int, b: int) -> bool:
        t, r = int(self.flows[0].producers[a]), int(self.flows[1].producers[b])
        return max(t, r) < 0 or (min(t, r) >= 0 and self.kinds[0][t] == self.kinds[1][r])

    def _left_over(self, t: int, r: int) -> list[tuple[int, int]]:
        """Inputs of two ops that have no partner yet, in order; none if their numbers or sizes leave a choice.

        None either if one op reads what the other does not, as a product with its bias and the addition of a bias.
        """
        left_t = [v for v in self.flows[0].reads[t] if self.classes[0][v] < 0]
        left_r = [v for v in self.flows[1].reads[r] if self.classes[1][v] < 0]
        common = {int(self.classes[0][v]) for v in self.flows[0].reads[t]} - {-1}
        if common != {v for v in self.flows[1].reads[r] if self.classes[1][v] >= 0}:
            return []
        if len(left_t) != len(left_r) or (len(left_t) > 1 and not self._same_sizes(left_t, left_r)):
            return []
        return list(zip(left_t, left_r, strict=True))

    def _same_sizes(self, left_t: list[int], left_r: list[int]) -> bool:
        sizes = [self.matching.prints_t.size[v] for v in left_t]
        return sizes == [self.matching.prints_r.size[v] for v in left_r] and len(set(sizes)) == len(
            sizes
        )

    def _touch(self, t: int, r: int) -> None:
        self.dirty[0].update(op for op in self.flows[0].readers[t] if self.ops[0][op] < 0)
        self.dirty[1].update(op for op in self.flows[1].readers[r] if self.ops[1][op] < 0)
