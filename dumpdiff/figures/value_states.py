"""The state and error of every value of both sides, read from a result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..divergence.joint_graph import JointGraph
from ..graph import Flow
from ..model.arrays import Floats, Objects, wrap_object
from ..model.result import Result
from ..model.verdict import VALUE_STATES

UNPAIRED = "unpaired"
#: Worst first: an op that wrote several values has the state that comes first here.
_SEVERITY = tuple(VALUE_STATES)


@dataclass(frozen=True)
class ValueStates:
    """State and error per value class of one side."""

    state: Objects  #: words of ``model.verdict.VALUE_STATES``
    error: Floats  #: against its partner, NaN where it was not compared

    def find_worst(self, values: tuple[int, ...]) -> tuple[str, float]:
        """Return state and error of the worst of some values; unpaired and NaN for no values."""
        outcomes = [(str(self.state[value]), float(self.error[value])) for value in values]
        return min(outcomes, key=_rank_outcome, default=(UNPAIRED, np.nan))


def _rank_outcome(outcome: tuple[str, float]) -> tuple[int, float]:
    """Return a sort key that puts the worst state first, and in it the largest error."""
    state, error = outcome
    return _SEVERITY.index(state), -error


def read_value_states(graph: JointGraph, result: Result) -> tuple[ValueStates, ValueStates]:
    """Return the states of every value of the target and of the reference, from the tables."""
    comparison = graph.comparison
    n_pairs = len(comparison.pairs)
    states = np.full(n_pairs, wrap_object(UNPAIRED))
    tensors = result.pairs["reference"].to_numpy(dtype=np.int64)
    nodes = graph.reference_nodes[comparison.alignment.reference.tensor_class[tensors]]
    is_slot_pair = (result.pairs["evidence"] == "slot").to_numpy()
    states[nodes[~is_slot_pair]] = result.pairs["state"].to_numpy()[~is_slot_pair]
    slot_rows = result.pairs[is_slot_pair].set_index(["target", "reference"])["state"].to_dict()
    for node, pair in comparison.slot_pairs:
        states[node] = slot_rows.get((pair.target_tensor, pair.reference_tensor), UNPAIRED)
    is_uncompared = np.isin(states.astype(str), ("incomparable", UNPAIRED))
    is_compared = comparison.pairs["comparable"].to_numpy(dtype=bool) & ~is_uncompared
    errors = np.where(is_compared, comparison.pairs["error"].to_numpy(), np.nan)
    flows = (comparison.alignment.target, comparison.alignment.reference)
    nodes_of_sides = (graph.target_nodes, graph.reference_nodes)
    sides = []
    for name, flow, side_nodes in zip(("target", "reference"), flows, nodes_of_sides, strict=True):
        value_states = _read_uncompared_states(flow, result, name)
        is_pair = side_nodes < n_pairs
        value_errors = np.full(len(side_nodes), np.nan)
        value_states[is_pair] = states[side_nodes[is_pair]]
        value_errors[is_pair] = errors[side_nodes[is_pair]]
        sides.append(ValueStates(value_states, value_errors))
    return sides[0], sides[1]


def _read_uncompared_states(flow: Flow, result: Result, side: str) -> Objects:
    """Return (values,) the states of one side's values that were not compared, else 'unpaired'."""
    rows = result.uncompared[result.uncompared["side"] == side]
    places = zip(rows["op"], rows["slot"], strict=True)
    state_of_place = dict(zip(places, rows["state"], strict=True))
    tensors = flow.classes["tensor"].to_numpy(dtype=np.int64)
    ops = flow.trace.ops["name"].to_numpy()[flow.tensors["op"].to_numpy()[tensors]]
    slots = flow.tensors["slot"].to_numpy()[tensors]
    states = np.full(len(tensors), wrap_object(UNPAIRED))
    for value, place in enumerate(zip(ops.tolist(), slots.tolist(), strict=True)):
        states[value] = state_of_place.get(place, UNPAIRED)
    return states
