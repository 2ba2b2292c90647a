"""What the agreeing part of a pair of dumps teaches: which ops of one framework are which of the other, in this run."""

from __future__ import annotations

from collections import Counter

from ..graph import Flow
from ..result import Equivalence
from .joined import Joined
from .states import AGREEING, States

_LONGEST = 8  # ops of one side: beyond, it is no decomposition but a part of the network


def learned(graph: Joined, states: States) -> tuple[Equivalence, ...]:
    """Operator equivalences and decompositions, most frequent first.

    Where a value agrees and so does all that it was computed from, the ops in between are the same computation: one
    kind against another, or one op against several. Layout ops and ops of one canonical kind say nothing.
    """
    alignment = graph.comparison.alignment
    counts: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for node in range(len(graph.comparison.pairs)):
        if states.state[node] != AGREEING or states.above[node].parted:
            continue
        nodes = (*states.above[node].between, node)
        ops_t = _makers(alignment.target, [int(graph.class_t[n]) for n in nodes])
        ops_r = _makers(alignment.reference, [int(graph.class_r[n]) for n in nodes])
        kinds_t, kinds_r = [alignment.kinds_t[op] for op in ops_t], [alignment.kinds_r[op] for op in ops_r]
        if kinds_t and kinds_r and kinds_t != kinds_r and max(len(kinds_t), len(kinds_r)) <= _LONGEST:
            counts[_kinds(alignment.target, ops_t), _kinds(alignment.reference, ops_r)] += 1
    return tuple(Equivalence(t, r, count) for (t, r), count in counts.most_common())


def _makers(flow: Flow, values: list[int]) -> list[int]:
    made = {int(flow.producers[value]) for value in values if value >= 0}
    return sorted(op for op in made if op >= 0)


def _kinds(flow: Flow, ops: list[int]) -> tuple[str, ...]:
    return tuple(str(flow.trace.ops["kind"].iat[op]) for op in ops)
