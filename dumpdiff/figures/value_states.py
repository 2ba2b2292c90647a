"""The state and error of every value of both sides, read from a result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..divergence.joint_graph import JointGraph
from ..model.arrays import Floats, Ints, Objects
from ..model.result import Result

UNMATCHED = "unmatched"
#: Worst first: an op that wrote several values has the state that comes first here.
SEVERITY = ("introduced", "amplified", "propagated", "isolated", "agreeing", UNMATCHED)


@dataclass(frozen=True)
class ValueStates:
    """State and error per value class of one side."""

    state: Objects  #: agreeing, introduced, propagated, amplified; unmatched if it is not compared
    error: Floats  #: against its partner, NaN where unmatched

    def find_worst(self, values: tuple[int, ...]) -> tuple[str, float]:
        """Return state and error of the worst of some values; unmatched and NaN for no values."""
        outcomes = [(str(self.state[value]), float(self.error[value])) for value in values]
        return min(outcomes, key=_rank_outcome, default=(UNMATCHED, np.nan))


def _rank_outcome(outcome: tuple[str, float]) -> tuple[int, float]:
    """Return a sort key that puts the worst state first, and in it the largest error."""
    state, error = outcome
    return SEVERITY.index(state), -error


def read_value_states(graph: JointGraph, result: Result) -> tuple[ValueStates, ValueStates]:
    """Return the states of the pairs table for every value of the target and of the reference."""
    comparison = graph.comparison
    n_pairs = len(comparison.pairs)
    states = np.full(n_pairs, UNMATCHED, dtype=object)
    tensors = result.pairs["reference"].to_numpy(dtype=np.int64)
    nodes = graph.reference_nodes[comparison.alignment.reference.tensor_class[tensors]]
    is_slot_pair = (result.pairs["evidence"] == "slot").to_numpy()
    states[nodes[~is_slot_pair]] = result.pairs["state"].to_numpy()[~is_slot_pair]
    slot_rows = result.pairs[is_slot_pair].set_index(["target", "reference"])["state"].to_dict()
    for node, pair in comparison.pairs["slot_pair"].dropna().items():
        states[node] = slot_rows.get((pair.target_tensor, pair.reference_tensor), UNMATCHED)
    states[np.isin(states.astype(str), ("incomparable", "reconverged"))] = UNMATCHED
    errors = np.where(states == UNMATCHED, np.nan, comparison.pairs["error"].to_numpy())
    target_states = _read_side(graph.target_nodes, states, errors)
    reference_states = _read_side(graph.reference_nodes, states, errors)
    return target_states, reference_states


def _read_side(node_of: Ints, states: Objects, errors: Floats) -> ValueStates:
    """Return the states of one side; ``node_of`` is the row of each value class, if it has one."""
    if not len(states):
        unmatched = np.full(len(node_of), UNMATCHED, dtype=object)
        return ValueStates(unmatched, np.full(len(node_of), np.nan))
    is_paired = node_of < len(states)
    row = np.where(is_paired, node_of, 0)
    value_states = np.where(is_paired, states[row], UNMATCHED)
    value_errors = np.where(is_paired, errors[row], np.nan)
    return ValueStates(value_states, value_errors)
