"""What became of every value: agreeing, introduced, propagated, amplified, or not comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..comparison import NO_INFORMATION
from ..graph.missing_edges import is_graph_input
from ..model.arrays import Objects
from ..model.trace import FORWARD
from ..rulebook import Rules
from .error_bounds import compute_cancellation, build_visibility_function, compute_conditioning, build_share_function
from .joint_graph import JointGraph
from .recomputation import Recomputation, recompute_op

#: Errors of agreeing inputs may grow past the tolerance, by what the operator's conditioning explains, up to this
#: many tolerances; beyond it a value no longer agrees, however it came about.
_CREEP = 32.0
_MOST_AGAIN = (
    64  # operators run again: after a divergence of every sum the first of them are what matters
)
_BY_NAME = 0.9  # confidence of pairs by name or by an unmistakable value
_NEAR = 0.05  # relative: so near by chance is no other tensor
_OUTLIVES = (
    "update"  # evidence of pairs that the optimizer keeps beyond the step, see alignment.updates
)
_REMEMBERED = 32  # ancestors, and values between, that are kept for the report

AGREEING, INTRODUCED, PROPAGATED, AMPLIFIED, UNKNOWN, RECONVERGED = (
    "agreeing", "introduced", "propagated", "amplified", "incomparable", "healed",
)  # fmt: skip


@dataclass(frozen=True)
class Ancestry:
    """What a value was computed from, as far as it can be compared, and what lies between without a partner."""

    worst_agreeing_error: float = (
        np.nan
    )  #: largest error among the nearest comparable ancestors that agree
    worst_diverged_error: float = np.nan  #: the same among those that do not; NaN if all agree
    carried_error: float = (
        np.nan
    )  #: the largest of the errors of those that agree, each for its share of a sum
    cancellation: float = 1.0  #: by how much sums on the way cancel, the largest, likewise
    ancestors: tuple[int, ...] = ()  #: the first of those ancestors
    unpaired_nodes: tuple[int, ...] = ()  #: the nearest of the values in between, in dataflow order

    @property
    def has_diverged(self) -> bool:
        """Some ancestor disagrees."""
        return not math.isnan(self.worst_diverged_error)


@dataclass(frozen=True)
class States:
    """Per node of a joined graph."""

    #: (nodes,) one of the names above; 'healed' means: no agreement of its own, but all paths run into it
    state: Objects
    ancestry: tuple[Ancestry, ...]
    recomputations: Mapping[
        int, Recomputation
    ]  #: nodes beyond their tolerance whose operator could be run again


def classify(graph: JointGraph, rules: Rules) -> States:
    """Walk the joined graph from inputs to outputs.

    A node whose error is beyond tolerance, beyond what its operator makes of its agreeing inputs' errors (measured by
    running it again where that can be done), and that is not as near to the exact result as the reference's, is
    introduced if no comparable ancestor disagrees. If one does, it is propagated; amplified if its error exceeds theirs
    by more than ten times the conditioning. Every gradient depends on the whole forward pass. Then, from outputs to
    inputs: what has no agreement of its own but feeds only agreement is healed; but no value of the forward pass that
    was compared, if that would leave gradients that part without a cause.
    """
    pairs = graph.comparison.pairs
    error, tolerance, comparable = (
        pairs[name].tolist() for name in ("error", "tolerance", "comparable")
    )
    broken = (pairs["nonfinite_mismatch"] > 0).tolist()
    cancelling = compute_cancellation(graph)
    factor, cancels = (
        (compute_conditioning(graph, rules) * cancelling[: len(pairs)]).tolist(),
        cancelling.tolist(),
    )
    backward = (graph.phase != FORWARD).tolist()
    share = build_share_function(graph)
    state = [UNKNOWN] * graph.n_nodes
    above = [Ancestry()] * graph.n_nodes
    again: dict[int, Recomputation] = {}
    forward_parted: list[int] = []
    for node in graph.order:
        above[node] = known = _above(graph, node, state, above, error, cancels, share)
        if node >= len(pairs) or not comparable[node]:
            continue
        allowed = tolerance[node] * max(cancels[node], min(_CREEP, known.cancellation))
        follows = known.has_diverged or (backward[node] and bool(forward_parted))
        suspect = error[node] > allowed and not broken[node] and not follows
        if suspect:
            if len(again) < _MOST_AGAIN and (found := recompute_op(graph, node)) is not None:
                again[node] = found
            allowed = _carried(allowed, factor[node], known.carried_error, again.get(node))
        if (
            suspect
            and node in again
            and again[node].is_equally_accurate(tolerance[node], known.worst_agreeing_error)
        ):
            state[node] = AGREEING
        elif error[node] <= allowed and not broken[node]:
            state[node] = (
                AGREEING if allowed < NO_INFORMATION or error[node] <= tolerance[node] else UNKNOWN
            )
        elif known.has_diverged:
            amplified = error[node] > 10 * factor[node] * known.worst_diverged_error
            state[node] = AMPLIFIED if amplified else PROPAGATED
        elif follows:
            state[node] = PROPAGATED
        else:
            state[node] = INTRODUCED
            if not backward[node]:
                forward_parted.append(node)
    noticed = [max(e, t * c) for e, t, c in zip(error, tolerance, cancels, strict=False)]
    strained = [e > t for e, t in zip(error, tolerance, strict=True)]
    sure = _surely_other(graph)
    healed = _healed(graph, state, sure, error, noticed, strained)
    if _without_cause(graph, healed):
        sure = [one or (node < len(pairs) and not backward[node]) for node, one in enumerate(sure)]
        healed = _healed(graph, state, sure, error, noticed, strained)
    return States(np.array(healed, dtype=object), tuple(above), again)


def _carried(allowed: float, factor: float, given: float, again: Recomputation | None) -> float:
    """What is allowed where inputs agree to ``given`` only: their error, enlarged as measured or as the rules say."""
    if not given > 0:
        return allowed
    if again is not None and np.isfinite(again.amplification):
        return max(allowed, again.amplification * given)
    return max(allowed, min(_CREEP * allowed, factor * given))


def _above(
    graph: JointGraph,
    node: int,
    state: list[str],
    above: list[Ancestry],
    error: list[float],
    cancels: list[float],
    share: Callable[[int, int], float],
) -> Ancestry:
    """Gathered from the parents; a parent that cannot be compared stands for what lies above it."""
    agreeing, parted, given = [], [], []
    cancelling = 1.0
    ancestors: dict[int, None] = {}
    between: dict[int, None] = {}
    for parent in graph.parents[node]:
        part = share(parent, node)
        if state[parent] == UNKNOWN:
            beyond = above[parent]
            agreeing.append(beyond.worst_agreeing_error)
            parted.append(beyond.worst_diverged_error)
            given.append(part * beyond.carried_error)
            cancelling = max(cancelling, part * max(cancels[parent], beyond.cancellation))
            ancestors.update(dict.fromkeys(beyond.ancestors))
            between.update(dict.fromkeys((*beyond.unpaired_nodes, parent)))
        else:
            (agreeing if state[parent] == AGREEING else parted).append(error[parent])
            given.append(part * error[parent] if state[parent] == AGREEING else math.nan)
            ancestors[parent] = None
    return Ancestry(
        _largest(agreeing),
        _largest(parted),
        _largest(given),
        cancelling,
        tuple(ancestors)[:_REMEMBERED],
        tuple(between)[-_REMEMBERED:],
    )


def _largest(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _surely_other(graph: JointGraph) -> list[bool]:
    """(nodes,) what differs and stays so, whatever is computed from it.

    Parameters and inputs that are one tensor beyond doubt; new weights and moments, which outlive the step.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    given = [
        is_graph_input(alignment.target, t) and is_graph_input(alignment.reference, r)
        for t, r in zip(pairs["target"].tolist(), pairs["reference"].tolist(), strict=True)
    ]
    same_tensor = (pairs["confidence"].to_numpy() >= _BY_NAME) | (pairs["error"].to_numpy() < _NEAR)
    kept = (pairs["evidence"] == _OUTLIVES).to_numpy()
    sure: list[bool] = ((np.array(given, dtype=bool) & same_tensor) | kept).tolist()
    return sure + [False] * (graph.n_nodes - len(pairs))


def _without_cause(graph: JointGraph, state: list[str]) -> bool:
    """Something parts, and nothing that it depends on is introduced.

    So it is where gradients part since the forward pass does, and the forward pass was healed because what follows in
    it is equal, or looks equal in a coarse dtype and by statistics alone. But gradients follow from it, too.
    """
    introduced = {node for node, name in enumerate(state) if name == INTRODUCED}
    if any(graph.phase[node] == FORWARD for node in introduced):
        return False
    caused: set[int] = set()
    for node in graph.order:
        if node in introduced or not caused.isdisjoint(graph.parents[node]):
            caused.add(node)
        elif state[node] in (PROPAGATED, AMPLIFIED):
            return True
    return False


def _healed(
    graph: JointGraph,
    given: list[str],
    sure: list[bool],
    error: list[float],
    noticed: list[float],
    strained: list[bool],
) -> list[str]:
    """The states, with what feeds something, and nothing that does not agree or heal in its turn, marked as healed.

    A value that was compared and is off is healed only if its error would have been noticed: if, carried on, it is
    more than what some agreeing value below is off or may be (``noticed``). A loss of one number vouches for little,
    and so does a residual sum for a small branch, most of all in a coarse dtype. The last value of a path, as a loss
    is, is never healed, nor is what is ``sure``. What agrees by what its inputs carry in alone (``strained``) vouches
    for nothing unless what is computed from it agrees, too.
    """
    state = list(given)
    children: list[list[int]] = [[] for _ in range(graph.n_nodes)]
    for node, parents in enumerate(graph.parents):
        for parent in parents:
            children[parent].append(node)
    share = build_visibility_function(graph)
    least = [
        math.inf
    ] * graph.n_nodes  # error of each node from which on something below would have noticed
    sound = [False] * graph.n_nodes
    for node in reversed(graph.order):
        below = [sound[child] for child in children[node]]
        for child in children[node]:
            if sound[child] and (part := share(node, child)) > 0:
                at_child = noticed[child] if state[child] == AGREEING else least[child]
                least[node] = min(least[node], at_child / part)
        if state[node] == AGREEING:
            sound[node] = not strained[node] or all(below)
        elif (
            below
            and all(below)
            and not sure[node]
            and (state[node] == UNKNOWN or not error[node] <= least[node])
        ):
            state[node] = RECONVERGED
            sound[node] = True
    return state
