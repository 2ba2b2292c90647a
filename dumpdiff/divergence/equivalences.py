"""What the agreeing part of two dumps teaches: equivalent operators and parameter names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags
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
    n_pairs = len(graph.comparison.pairs)
    is_instructive = states.ancestry.flag_distant()[:n_pairs] | ~_flag_equal_kinds(graph)
    is_instructive &= states.state[:n_pairs] == AGREEING
    for node in np.flatnonzero(is_instructive).tolist():
        ancestry = states.ancestry[node]
        if ancestry.has_diverged:
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


def _flag_equal_kinds(graph: JointGraph) -> Flags:
    """Return (pairs,) whether both values have producers of equal kind: the most frequent case."""
    n_pairs = len(graph.comparison.pairs)
    side_t, side_r = graph.sides
    number_of_kind = {kind: number for number, kind in enumerate({*side_t.kinds, *side_r.kinds})}
    is_produced = np.ones(n_pairs, dtype=bool)
    kinds_of_sides = []
    for side in graph.sides:
        kinds_of_ops = np.array([number_of_kind[kind] for kind in side.kinds], dtype=np.int64)
        producers = side.flow.producers[side.classes[:n_pairs]]
        is_produced &= producers >= 0
        kinds_of_sides.append(kinds_of_ops[producers])
    flags: Flags = is_produced & (kinds_of_sides[0] == kinds_of_sides[1])
    return flags


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
