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
    has_ops_between = states.ancestry.flag_ops_between()[:n_pairs]
    is_instructive = has_ops_between | _flag_different_kinds(graph)
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


def _flag_different_kinds(graph: JointGraph) -> Flags:
    """Return (pairs,) whether both values have producers, of different kinds."""
    n_pairs = len(graph.comparison.pairs)
    side_t, side_r = graph.sides
    words = dict.fromkeys((*side_t.op_kinds.words, *side_r.op_kinds.words))
    number_of_kind = {word: number for number, word in enumerate(words)}
    producers_t, producers_r = side_t.producers[:n_pairs], side_r.producers[:n_pairs]
    kinds_t, kinds_r = (side.op_kinds.measure(number_of_kind.__getitem__) for side in graph.sides)
    flags = (producers_t >= 0) & (producers_r >= 0)
    flags[flags] = kinds_t[producers_t[flags]] != kinds_r[producers_r[flags]]
    return flags


def match_parameter_names(graph: JointGraph, states: States) -> tuple[tuple[str, str], ...]:
    """Return (target's name, reference's name) of every agreeing parameter that both sides name."""
    alignment = graph.comparison.alignment
    groups = graph.comparison.pairs["group"].to_numpy()
    names_t = alignment.target.classes["parameter"].to_numpy()
    names_r = alignment.reference.classes["parameter"].to_numpy()
    is_named_t = (names_t != "")[graph.target_classes[: len(groups)]]
    is_named_r = (names_r != "")[graph.reference_classes[: len(groups)]]
    name_pairs = []
    for node in np.flatnonzero(is_named_t & is_named_r).tolist():
        if groups[node] is None and states.state[node] == AGREEING:
            name_t = str(names_t[graph.target_classes[node]])
            name_r = str(names_r[graph.reference_classes[node]])
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
