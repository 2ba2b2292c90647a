"""What became of every value of both sides, read off a result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..divergence.joint_graph import Joined
from ..model.arrays import Floats, Ints, Objects
from ..model.result import Result

UNMATCHED = "unmatched"
#: From bad to good: of several values the first of these tells what became of the op.
SEVERITY = ("introduced", "amplified", "propagated", "agreeing", UNMATCHED)


@dataclass(frozen=True)
class Judged:
    """Per value class of one side."""

    state: Objects  #: agreeing, introduced, propagated, amplified, or unmatched: nothing to judge it by
    error: Floats  #: against its partner, NaN where unmatched

    def worst(self, values: tuple[int, ...]) -> tuple[str, float]:
        """State and error of the worst of some values; unmatched and NaN if none was compared."""
        of_values = [(str(self.state[value]), float(self.error[value])) for value in values]
        return min(
            of_values,
            key=lambda told: (SEVERITY.index(told[0]), -told[1]),
            default=(UNMATCHED, np.nan),
        )


def judged(graph: Joined, result: Result) -> tuple[Judged, Judged]:
    """The states of the pairs table, for every value of the target and of the reference."""
    comparison = graph.comparison
    rows = len(comparison.pairs)
    states = np.full(rows, UNMATCHED, dtype=object)
    tensors = result.pairs["reference"].to_numpy(dtype=np.int64)
    states[graph.node_r[comparison.alignment.reference.tensor_class[tensors]]] = result.pairs[
        "state"
    ].to_numpy()
    states[states == "incomparable"] = UNMATCHED
    errors = np.where(states == UNMATCHED, np.nan, comparison.pairs["error"].to_numpy())
    return _of_side(graph.node_t, states, errors), _of_side(graph.node_r, states, errors)


def _of_side(node_of: Ints, states: Objects, errors: Floats) -> Judged:
    paired = node_of < len(states)
    row = np.where(paired, node_of, 0)
    if not len(states):
        return Judged(np.full(len(node_of), UNMATCHED, dtype=object), np.full(len(node_of), np.nan))
    return Judged(np.where(paired, states[row], UNMATCHED), np.where(paired, errors[row], np.nan))
