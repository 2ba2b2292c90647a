"""Weights that agree only in another layout, although the operators that read them do not undo it.

A weight may be stored transposed where its operator transposes it back. Then what it computes
agrees. A kernel with two axes exchanged that is read like any other kernel is another weight.
"""

from __future__ import annotations

import numpy as np

from ..comparison import Comparison
from ..comparison.metrics import compute_metrics
from ..comparison.whole_tensors import METRIC_NAMES, load_pair
from ..graph import Flow
from ..model.trace import FORWARD
from ..model.verdict import AGREEING, INTRODUCED
from .joint_graph import JointGraph
from .states import States

#: Kinds of operators that have no argument by which they transpose a weight.
_FIXED_LAYOUT_KINDS = frozenset({"convolution"})

#: Kinds of both readers, and the layout in which they read a weight.
_Reading = tuple[str, str, str]


def find_misread_layouts(graph: JointGraph, states: States) -> list[int]:
    """Return the pairs of weights whose layout is the place where the runs diverge.

    The two tensors have one shape and agree only transposed, what is computed from them is
    introduced, and the operators do not undo the layout: other weights that operators of these
    kinds read are stored alike on both sides, and never in this layout, where the results agree.
    """
    suspects = _find_transposed_weights(graph, states)
    if not suspects:
        return []
    proven_readings: set[_Reading] = set()  # what is computed from the weight agrees
    introduced_children: set[int] = set()
    for node in range(len(graph.comparison.pairs)):
        if graph.phase[node] != FORWARD:
            continue
        if states.state[node] == INTRODUCED:
            introduced_children.update(states.ancestry[node].ancestors)
        elif states.state[node] == AGREEING:
            for weight in states.ancestry[node].ancestors:
                reading = _find_reading(graph, weight)
                if reading is not None:
                    proven_readings.add(reading)
    misread_weights = []
    for weight in sorted(suspects & introduced_children):
        reading = _find_reading(graph, weight)
        if reading is None or reading in proven_readings:
            continue
        kind_t, kind_r, _ = reading
        has_fixed_layout = {kind_t, kind_r} <= _FIXED_LAYOUT_KINDS
        if has_fixed_layout or (kind_t, kind_r, "same") in proven_readings:
            misread_weights.append(weight)
    return misread_weights


def compare_as_stored(comparison: Comparison, rows: list[int]) -> None:
    """Judge some pairs of whole tensors element by element as they are stored.

    The rows of ``comparison.pairs`` are changed in place.
    """
    pairs = comparison.pairs
    for row in rows:
        target, reference = load_pair(comparison.alignment, pairs, row)
        if target is None or reference is None:
            continue
        tolerance = float(pairs["tolerance"].iat[row])
        metrics = compute_metrics(target, reference, tolerance, False)
        label = pairs.index[row]
        for name in METRIC_NAMES:
            pairs.loc[label, name] = getattr(metrics, name)
        pairs.loc[label, ["layout", "error", "agrees"]] = ["same", metrics.relative_l2, False]


def _find_transposed_weights(graph: JointGraph, states: States) -> set[int]:
    """Return the agreeing pairs that no op computed, of one shape, in a transposed layout."""
    pairs, alignment = graph.comparison.pairs, graph.comparison.alignment
    is_transposed = pairs["layout"].str.contains("transpose").to_numpy(dtype=bool)
    is_whole = (pairs["metric"] == "relative_l2").to_numpy()
    suspects = set()
    for node in np.flatnonzero(is_transposed & is_whole).tolist():
        if states.state[node] != AGREEING or pairs["group"].iat[node] is not None:
            continue
        producer_t = alignment.target.producers[graph.target_classes[node]]
        producer_r = alignment.reference.producers[graph.reference_classes[node]]
        shape_t = _get_shape(alignment.target, int(pairs["target_tensor"].iat[node]))
        shape_r = _get_shape(alignment.reference, int(pairs["reference_tensor"].iat[node]))
        if max(producer_t, producer_r) < 0 and shape_t == shape_r:
            suspects.add(node)
    return suspects


def _get_shape(flow: Flow, tensor: int) -> tuple[int, ...] | None:
    shape: tuple[int, ...] | None = flow.tensors["shape"].iat[tensor]
    return shape


def _find_reading(graph: JointGraph, node: int) -> _Reading | None:
    """Return the kinds of the ops that first read a weight, and its layout; None if it is none.

    The layouts of all tensors of two or more axes that no op computed count.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    if node >= len(pairs) or pairs["metric"].iat[node] != "relative_l2":
        return None
    value_t, value_r = int(graph.target_classes[node]), int(graph.reference_classes[node])
    kinds = []
    for flow, value, side_kinds in (
        (alignment.target, value_t, alignment.target_kinds),
        (alignment.reference, value_r, alignment.reference_kinds),
    ):
        users = flow.users[value]
        # without a record of an op, the module inside which none was recorded
        readers = [op for op in users if flow.levels[op] == "op"] or users[-1:]
        if flow.producers[value] >= 0 or not readers:
            return None
        kinds.append(side_kinds[readers[0]])
    return kinds[0], kinds[1], str(pairs["layout"].iat[node])
