"""How much of each side, by phase, could be compared. Without this a verdict means nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags, Ints
from ..model.dtypes import is_floating
from ..model.trace import FORWARD, PHASES, flag_words
from ..model.verdict import INCOMPARABLE, RECONVERGED, VALUE_STATES
from .joint_graph import JointGraph
from .states import States

#: Counts by side, phase, unit ('values' or 'ops') and state.
StateCounts = Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]


def compute_coverage(graph: JointGraph, states: States) -> dict[str, dict[str, dict[str, float]]]:
    """Return how much was compared, by side ('target', 'reference') and phase.

    The numbers are ops, compared, reconverged and share = compared / ops; and the same of values:
    values, compared_values, reconverged_values and value_share. Values include what no op produced:
    parameters and inputs. An op counts if it writes a value; a backward record of an API dump
    counts if it was given a gradient. It is compared if one of those values has a partner and
    statistics. It is reconverged if none has, but all that is computed from it agrees again.
    """
    is_compared = flag_compared_nodes(graph, states)
    is_reconverged = (states.state == RECONVERGED) & ~is_compared
    alignment = graph.comparison.alignment
    return {
        "target": _count_side(alignment.target, graph.target_nodes, is_compared, is_reconverged),
        "reference": _count_side(
            alignment.reference, graph.reference_nodes, is_compared, is_reconverged
        ),
    }


def count_states(graph: JointGraph, states: States) -> StateCounts:
    """Return how many values and ops are in each state, by side and phase.

    An op has the worst state of its results, in the order of :data:`VALUE_STATES`. Ops without
    results do not count.
    """
    names = list(VALUE_STATES)
    rank_of_state = {name: rank for rank, name in enumerate(names)}
    ranks = np.array([rank_of_state[name] for name in states.state.tolist()], dtype=int)
    alignment = graph.comparison.alignment
    counts = {}
    for side, flow, nodes in (
        ("target", alignment.target, graph.target_nodes),
        ("reference", alignment.reference, graph.reference_nodes),
    ):
        value_ranks = ranks[nodes]
        op_ranks = _find_worst_ranks(flow, value_ranks, len(names))
        op_phases = flow.trace.ops["phase"].to_numpy()
        value_phases = flow.classes["phase"].to_numpy()
        phases = {}
        for phase in PHASES:
            units = {
                "values": _count_ranks(value_ranks[value_phases == phase], names),
                "ops": _count_ranks(op_ranks[op_phases == phase], names),
            }
            if any(units.values()):
                phases[phase] = units
        counts[side] = phases
    return counts


def count_index_ops(graph: JointGraph, states: States) -> dict[str, int]:
    """Return how many forward ops of each side only make up indices or masks, as far as is known.

    They compute whole numbers or conditions from such, and no value that was compared or has
    reconverged is computed from these in the record. One program writes a mask element by element
    where another one has one op. What a mask does shows in the scores, which count.
    """
    is_settled = flag_compared_nodes(graph, states) | (states.state == RECONVERGED)
    alignment = graph.comparison.alignment
    counts = {}
    for side, flow, nodes in (
        ("target", alignment.target, graph.target_nodes),
        ("reference", alignment.reference, graph.reference_nodes),
    ):
        has_results, _ = flag_compared_ops(flow, nodes, is_settled)
        is_index_op = has_results & ~_flag_float_ops(flow)
        is_index_op &= flow.trace.ops["phase"].to_numpy() == FORWARD
        if is_index_op.any():
            is_index_op &= ~_flag_sources(flow, is_settled[nodes])
        counts[side] = int(is_index_op.sum())
    return counts


def _flag_sources(flow: Flow, is_flagged: Flags) -> Flags:
    """Return (ops,) whether an op has a result that is flagged, or that such a value depends on.

    ``is_flagged`` is (classes,).
    """
    leads_to_flagged = is_flagged.tolist()
    flags = np.zeros(len(flow.reads), dtype=bool)
    for op in range(len(flow.reads) - 1, -1, -1):
        flags[op] = any(leads_to_flagged[value] for value in flow.writes[op])
        if flags[op]:
            for value in flow.reads[op]:
                leads_to_flagged[value] = True
    return flags


def _flag_float_ops(flow: Flow) -> Flags:
    """Return (ops,) whether an op reads or writes floating-point values."""
    has_floats = flag_words(flow.classes["dtype"], is_floating)
    rows = np.flatnonzero(flow.tensor_class >= 0)
    rows = rows[has_floats[flow.tensor_class[rows]]]
    flags: Flags = np.bincount(flow.tensors["op"].to_numpy()[rows], minlength=len(flow.reads)) > 0
    return flags


def flag_compared_nodes(graph: JointGraph, states: States) -> Flags:
    """Return (nodes,) whether the two values of a node were compared.

    A comparison whose tolerance allows any error says nothing and does not count.
    """
    is_compared = np.zeros(graph.n_nodes, dtype=bool)
    is_compared[: len(graph.comparison.pairs)] = graph.comparison.pairs["comparable"].to_numpy()
    is_compared[states.state == INCOMPARABLE] = False
    return is_compared


def flag_compared_ops(flow: Flow, nodes: Ints, is_flagged: Flags) -> tuple[Flags, Flags]:
    """Return (ops,) whether an op has results at all, and whether one is on a flagged node.

    ``nodes`` is the node of each class.
    """
    ops, values = _list_results(flow)
    n_ops = len(flow.trace.ops)
    has_results = np.bincount(ops, minlength=n_ops) > 0
    has_flagged_result = np.bincount(ops, weights=is_flagged[nodes[values]], minlength=n_ops) > 0
    return has_results, has_flagged_result


def _list_results(flow: Flow) -> tuple[Ints, Ints]:
    """Return op and class of every result that has a class, see ``Flow.is_result``."""
    rows = np.flatnonzero(flow.is_result & (flow.tensor_class >= 0))
    return flow.tensors["op"].to_numpy()[rows], flow.tensor_class[rows]


def _find_worst_ranks(flow: Flow, value_ranks: Ints, n_ranks: int) -> Ints:
    """Return (ops,) the smallest rank of the results of each op, ``n_ranks`` where it has none."""
    ops, values = _list_results(flow)
    worst_ranks: Ints = np.full(len(flow.trace.ops), n_ranks)
    np.minimum.at(worst_ranks, ops, value_ranks[values])
    return worst_ranks


def _count_ranks(ranks: Ints, names: list[str]) -> dict[str, int]:
    """Return the number of each rank below ``len(names)`` by name, without zeros."""
    counts = np.bincount(ranks, minlength=len(names) + 1)[: len(names)]
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}


def _count_side(
    flow: Flow, nodes: Ints, is_compared: Flags, is_reconverged: Flags
) -> dict[str, dict[str, float]]:
    """Return the counts of one side by phase, without phases that have no op to count."""
    has_results, has_compared = flag_compared_ops(flow, nodes, is_compared)
    _, has_reconverged = flag_compared_ops(flow, nodes, is_reconverged)
    phases, value_phases = flow.trace.ops["phase"].to_numpy(), flow.classes["phase"].to_numpy()
    table = {}
    for phase in PHASES:
        in_phase = has_results & (phases == phase)
        n_ops = int(in_phase.sum())
        if n_ops == 0:
            continue
        n_compared = int((in_phase & has_compared).sum())
        phase_nodes = nodes[value_phases == phase]
        n_values, n_compared_values = len(phase_nodes), int(is_compared[phase_nodes].sum())
        table[phase] = {
            "ops": n_ops,
            "compared": n_compared,
            "reconverged": int((in_phase & has_reconverged & ~has_compared).sum()),
            "share": n_compared / n_ops,
            "values": n_values,
            "compared_values": n_compared_values,
            "reconverged_values": int(is_reconverged[phase_nodes].sum()),
            "value_share": n_compared_values / n_values if n_values else 0.0,
        }
    return table
