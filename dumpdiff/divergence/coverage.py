"""How much of each side, by phase, could be compared. Without this a verdict means nothing."""

from __future__ import annotations

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags, Ints
from ..model.trace import PHASES
from .joint_graph import JointGraph
from .states import RECONVERGED, States


def compute_coverage(graph: JointGraph, states: States) -> dict[str, dict[str, dict[str, float]]]:
    """Return ops, compared, reconverged and share = compared / ops, by side and phase.

    Sides are 'target' and 'reference'. An op counts if it writes a value; a backward record of an
    API dump counts if it was given a gradient. It is compared if one of those values has a partner
    and statistics. It is reconverged if none has, but all that is computed from it agrees again.
    """
    pairs = graph.comparison.pairs
    is_compared = np.zeros(graph.n_nodes, dtype=bool)
    is_compared[: len(pairs)] = pairs["comparable"].to_numpy()
    is_reconverged = states.state == RECONVERGED
    alignment = graph.comparison.alignment
    return {
        "target": _count_side(alignment.target, graph.target_nodes, is_compared, is_reconverged),
        "reference": _count_side(
            alignment.reference, graph.reference_nodes, is_compared, is_reconverged
        ),
    }


def flag_compared_ops(flow: Flow, nodes: Ints, is_flagged: Flags) -> tuple[Flags, Flags]:
    """Return (ops,) whether an op has results at all, and whether one is on a flagged node.

    ``nodes`` is the node of each class.
    """
    op_of_tensor = flow.tensors["op"].to_numpy()
    is_backward_record = flow.trace.ops["forward"].to_numpy()[op_of_tensor] >= 0
    is_gradient = is_backward_record & (flow.tensors["slot_kind"] == "input").to_numpy()
    rows = np.flatnonzero((flow.is_computed | is_gradient) & (flow.tensor_class >= 0))
    n_ops = len(flow.trace.ops)
    ops = op_of_tensor[rows]
    has_results = np.bincount(ops, minlength=n_ops) > 0
    row_is_flagged = is_flagged[nodes[flow.tensor_class[rows]]]
    has_flagged_result = np.bincount(ops, weights=row_is_flagged, minlength=n_ops) > 0
    return has_results, has_flagged_result


def _count_side(
    flow: Flow, nodes: Ints, is_compared: Flags, is_reconverged: Flags
) -> dict[str, dict[str, float]]:
    """Return the counts of one side by phase, without phases that have no op to count."""
    has_results, has_compared = flag_compared_ops(flow, nodes, is_compared)
    _, has_reconverged = flag_compared_ops(flow, nodes, is_reconverged)
    table = {}
    for phase in PHASES:
        in_phase = (flow.trace.ops["phase"] == phase).to_numpy() & has_results
        n_ops = int(in_phase.sum())
        if n_ops == 0:
            continue
        n_compared = int((in_phase & has_compared).sum())
        table[phase] = {
            "ops": n_ops,
            "compared": n_compared,
            "reconverged": int((in_phase & has_reconverged & ~has_compared).sum()),
            "share": n_compared / n_ops,
        }
    return table
