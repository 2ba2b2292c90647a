"""What the agreeing part of a pair of dumps teaches: which ops, and which parameter names, are one and the same."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..graph import Flow
from ..model.result import Equivalence
from .joint_graph import JointGraph
from .states import AGREEING, States

_LONGEST = 8  # ops of one side: beyond, it is no decomposition but a part of the network


def learn_equivalences(graph: JointGraph, states: States) -> tuple[Equivalence, ...]:
    """Operator equivalences and decompositions, most frequent first.

    Where a value agrees and so does all that it was computed from, the ops in between are the same computation: one
    kind against another, or one op against several. Layout ops and ops of one canonical kind say nothing.
    """
    alignment = graph.comparison.alignment
    counts: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for node in np.flatnonzero(states.state[: len(graph.comparison.pairs)] == AGREEING).tolist():
        above = states.ancestry[node]
        if above.parted or (not above.between and _same_kind(graph, node)):
            continue
        nodes = (*above.between, node)
        ops_t = _makers(alignment.target, [int(graph.target_classes[n]) for n in nodes])
        ops_r = _makers(alignment.reference, [int(graph.reference_classes[n]) for n in nodes])
        kinds_t, kinds_r = (
            [alignment.target_kinds[op] for op in ops_t],
            [alignment.reference_kinds[op] for op in ops_r],
        )
        if (
            kinds_t
            and kinds_r
            and kinds_t != kinds_r
            and max(len(kinds_t), len(kinds_r)) <= _LONGEST
        ):
            counts[_kinds(alignment.target, ops_t), _kinds(alignment.reference, ops_r)] += 1
    return tuple(Equivalence(t, r, count) for (t, r), count in counts.most_common())


def _same_kind(graph: JointGraph, node: int) -> bool:
    """One op of one canonical kind made it on either side: nothing to learn, and the most frequent case."""
    alignment = graph.comparison.alignment
    maker_t = alignment.target.producers[graph.target_classes[node]]
    maker_r = alignment.reference.producers[graph.reference_classes[node]]
    return bool(
        maker_t >= 0 and maker_r >= 0 and alignment.target_kinds[maker_t] == alignment.reference_kinds[maker_r]
    )


def match_parameter_names(graph: JointGraph, states: States) -> tuple[tuple[str, str], ...]:
    """(target's name, reference's name) of every parameter that agrees and that both sides name."""
    names = [
        flow.classes["parameter"].to_numpy()
        for flow in (graph.comparison.alignment.target, graph.comparison.alignment.reference)
    ]
    found = [
        (str(names[0][graph.target_classes[node]]), str(names[1][graph.reference_classes[node]]))
        for node, group in enumerate(graph.comparison.pairs["group"])
        if group is None and states.state[node] == AGREEING
    ]
    return tuple((ours, theirs) for ours, theirs in found if ours and theirs)


def _makers(flow: Flow, values: list[int]) -> list[int]:
    made = {int(flow.producers[value]) for value in values if value >= 0}
    return sorted(op for op in made if op >= 0)


def _kinds(flow: Flow, ops: list[int]) -> tuple[str, ...]:
    """As the framework spells them; the backward record of a call is told from the call by its ending."""
    table = flow.trace.ops
    return tuple(
        f"{table['kind'].iat[op]}{'Backward' if table['forward'].iat[op] >= 0 else ''}"
        for op in ops
    )
