"""How much of each side, by phase, could be compared: a verdict without this is worth nothing."""

from __future__ import annotations

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags, Ints
from ..model.trace import PHASES
from .joint_graph import JointGraph
from .states import RECONVERGED, States


def compute_coverage(graph: JointGraph, states: States) -> dict[str, dict[str, dict[str, float]]]:
    """By side ('target', 'reference') and phase: ops, compared, healed and share = compared / ops.

    An op counts if it writes a value (an API's backward record: if it was given a gradient); it is compared if one of
    those values has a partner and figures, healed if none has but all that is computed from it runs into agreement.
    """
    pairs = len(graph.comparison.pairs)
    comparable = graph.comparison.pairs["comparable"].to_numpy()
    compared_node = np.zeros(graph.n_nodes, dtype=bool)
    compared_node[:pairs] = comparable
    healed_node = states.state == RECONVERGED
    alignment = graph.comparison.alignment
    return {
        "target": _side(alignment.target, graph.target_nodes, compared_node, healed_node),
        "reference": _side(alignment.reference, graph.reference_nodes, compared_node, healed_node),
    }


def flag_compared_ops(flow: Flow, node_of: Ints, flags: Flags) -> tuple[Flags, Flags]:
    """(ops,) whether an op has results at all, and whether one of them is on a flagged node."""
    tensors = flow.tensors
    gradient = (flow.trace.ops["forward"].to_numpy()[tensors["op"]] >= 0) & (
        tensors["role"] == "input"
    ).to_numpy()
    rows = np.flatnonzero((flow.is_computed | gradient) & (flow.tensor_class >= 0))
    ops = tensors["op"].to_numpy()[rows]
    count = len(flow.trace.ops)
    counts = np.bincount(ops, minlength=count) > 0
    flagged = np.bincount(ops, weights=flags[node_of[flow.tensor_class[rows]]], minlength=count) > 0
    return counts, flagged


def _side(flow: Flow, node_of: Ints, compared: Flags, healed: Flags) -> dict[str, dict[str, float]]:
    counts, hit = flag_compared_ops(flow, node_of, compared)
    _, cured = flag_compared_ops(flow, node_of, healed)
    table = {}
    for phase in PHASES:
        of_phase = (flow.trace.ops["phase"] == phase).to_numpy() & counts
        total = int(of_phase.sum())
        if total:
            done = int((of_phase & hit).sum())
            table[phase] = {
                "ops": total,
                "compared": done,
                "healed": int((of_phase & cured & ~hit).sum()),
                "share": done / total,
            }
    return table
