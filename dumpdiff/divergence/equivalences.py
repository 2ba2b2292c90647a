"""What the agreeing part of two dumps teaches: equivalent operators and parameter names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..graph import Flow
from ..model.result import Equivalence
from ..model.verdict import AGREEING
from .joint_graph import JointGraph
from .states import States

#: Ops of one side of an equivalence. More of them are no decomposition but a part of the network.
_MAX_OPS = 8


def learn_equivalences(graph: JointGraph, states: States) -> tuple[Equivalence, ...]:
    """Return operator equivalences and decompositions, most frequent first.

    Where a value agrees, and everything that it was computed from too, the ops in between are the
    same computation: one kind or several on each side. Layout ops, and ops of equal canonical
    kinds, teach nothing.
    """
    alignment = graph.comparison.alignment
    counts: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    is_agreeing = states.state[: len(graph.comparison.pairs)] == AGREEING
    has_equal_kinds = _flag_equal_kinds(graph)
    for node in np.flatnonzero(is_agreeing).tolist():
        ancestry = states.ancestry[node]
        if ancestry.has_diverged:
            continue
        if not ancestry.unpaired_nodes and has_equal_kinds[node]:
            continue
        nodes = [*ancestry.unpaired_nodes, node]
        ops_t = _find_producers(alignment.target, graph.target_classes[nodes].tolist())
        ops_r = _find_producers(alignment.reference, graph.reference_classes[nodes].tolist())
        kinds_t = [alignment.target_kinds[op] for op in ops_t]
        kinds_r = [alignment.reference_kinds[op] for op in ops_r]
        is_informative = bool(kinds_t and kinds_r) and kinds_t != kinds_r
        if is_informative and max(len(kinds_t), len(kinds_r)) <= _MAX_OPS:
            names_t = _list_kind_names(alignment.target, ops_t)
            counts[names_t, _list_kind_names(alignment.reference, ops_r)] += 1
    return tuple(
        Equivalence(names_t, names_r, count) for (names_t, names_r), count in counts.most_common()
    )


def _flag_equal_kinds(graph: JointGraph) -> list[bool]:
    """Return (pairs,) whether both values have producers of equal kind: the most frequent case."""
    alignment, n_pairs = graph.comparison.alignment, len(graph.comparison.pairs)
    producers_t = alignment.target.producers[graph.target_classes[:n_pairs]].tolist()
    producers_r = alignment.reference.producers[graph.reference_classes[:n_pairs]].tolist()
    kinds_t, kinds_r = alignment.target_kinds, alignment.reference_kinds
    return [
        producer_t >= 0 and producer_r >= 0 and kinds_t[producer_t] == kinds_r[producer_r]
        for producer_t, producer_r in zip(producers_t, producers_r, strict=True)
    ]


def match_parameter_names(graph: JointGraph, states: States) -> tuple[tuple[str, str], ...]:
    """Return (target's name, reference's name) of every agreeing parameter that both sides name."""
    alignment = graph.comparison.alignment
    names_t = alignment.target.list_column("parameter")
    names_r = alignment.reference.list_column("parameter")
    name_pairs = []
    for node, group in enumerate(graph.comparison.pairs["group"]):
        if group is not None or states.state[node] != AGREEING:
            continue
        name_t = str(names_t[graph.target_classes[node]])
        name_r = str(names_r[graph.reference_classes[node]])
        if name_t and name_r:
            name_pairs.append((name_t, name_r))
    return tuple(name_pairs)


def _find_producers(flow: Flow, values: Sequence[int]) -> list[int]:
    """Return the ops that produced some classes, in order; class -1 is none."""
    producers = {int(flow.producers[value]) for value in values if value >= 0}
    return sorted(producers - {-1})


def _list_kind_names(flow: Flow, ops: list[int]) -> tuple[str, ...]:
    """Return the framework's names of the kinds; backward records of calls end in 'Backward'."""
    kinds, calls = flow.trace.ops["kind"], flow.trace.ops["forward"]
    names = []
    for op in ops:
        suffix = "Backward" if calls.iat[op] >= 0 else ""
        names.append(f"{kinds.iat[op]}{suffix}")
    return tuple(names)
