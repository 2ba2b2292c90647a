"""What became of every value: agreeing, introduced, propagated, amplified, or not comparable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..rules import Rules
from ..trace import FORWARD
from .joined import Joined

#: Errors of agreeing inputs may grow past the tolerance, by what the operator's conditioning explains, up to this
#: many tolerances; beyond it a value no longer agrees, however it came about.
_CREEP = 32.0

AGREEING, INTRODUCED, PROPAGATED, AMPLIFIED, UNKNOWN, HEALED = (
    "agreeing", "introduced", "propagated", "amplified", "incomparable", "healed",
)  # fmt: skip


@dataclass(frozen=True)
class States:
    """Per node of a joined graph."""

    state: np.ndarray  #: (nodes,) one of the names above; 'healed' means: no agreement of its own, but all paths run into it
    input_error: np.ndarray  #: (nodes,) largest error among the nearest comparable ancestors, NaN if there are none
    ancestors: tuple[tuple[int, ...], ...]  #: nearest comparable ancestors
    between: tuple[tuple[int, ...], ...]  #: nodes without a partner between those and the node


def classify(graph: Joined, rules: Rules) -> States:
    """Walk the joined graph from inputs to outputs.

    A node whose error is beyond tolerance, and beyond what its operator's conditioning makes of its agreeing inputs' errors, is
    introduced if no comparable ancestor disagrees. If one does, it is propagated; amplified if its error exceeds theirs
    by more than ten times the conditioning. Then, from outputs to inputs: what has no agreement of its own but
    feeds only agreement is healed.
    """
    pairs = graph.comparison.pairs
    error, tolerance = pairs["error"].to_numpy(), pairs["tolerance"].to_numpy()
    within, comparable = pairs["agrees"].to_numpy(), pairs["comparable"].to_numpy()
    broken = pairs["nonfinite_mismatch"].to_numpy() > 0
    conditioning = _conditioning(graph, rules)
    backward = graph.phase != FORWARD
    forward_parted: list[int] = []
    state = np.full(graph.nodes, UNKNOWN, dtype=object)
    input_error = np.full(graph.nodes, np.nan)
    ancestors: list[tuple[int, ...]] = [()] * graph.nodes
    between: list[tuple[int, ...]] = [()] * graph.nodes
    for node in graph.order:
        known: dict[int, None] = {}
        passed: dict[int, None] = {}
        for parent in graph.parents(node):
            if state[parent] == UNKNOWN:
                known.update(dict.fromkeys(ancestors[parent]))
                passed.update(dict.fromkeys((*between[parent], parent)))
            else:
                known[parent] = None
        ancestors[node], between[node] = tuple(known), tuple(passed)
        if node >= len(pairs) or not comparable[node]:
            continue
        if backward[node] and forward_parted and not known:
            known = dict.fromkeys(forward_parted)  # every gradient depends on the loss
            ancestors[node] = tuple(known)
        errors = [float(error[k]) for k in known]
        input_error[node] = max(errors, default=np.nan)
        bad = [k for k in known if state[k] != AGREEING]
        allowed = float(tolerance[node])
        if errors and not bad:
            allowed = max(allowed, min(_CREEP * allowed, conditioning(node) * max(errors)))
        if within[node] or (error[node] <= allowed and not broken[node]):
            state[node] = AGREEING
        elif not bad:
            state[node] = INTRODUCED
            if not backward[node]:
                forward_parted.append(node)
        else:
            worst = max(float(error[k]) for k in bad)
            state[node] = AMPLIFIED if error[node] > 10 * conditioning(node) * worst else PROPAGATED
    _heal(graph, state)
    return States(state, input_error, tuple(ancestors), tuple(between))


def _conditioning(graph: Joined, rules: Rules) -> Callable[[int], float]:
    alignment = graph.comparison.alignment
    makers = alignment.target.classes["producer"].to_numpy()

    def of(node: int) -> float:
        maker = int(makers[graph.class_t[node]])
        return rules.conditioning(alignment.kinds_t[maker]) if maker >= 0 else 1.0

    return of


def _heal(graph: Joined, state: np.ndarray) -> None:
    """Mark what has no agreement of its own but at least one path into agreement and no other path anywhere.

    A disagreement is only healed if it has such a path itself; the last value of a path that ends without
    agreement, as a loss does, is never healed.
    """
    children: list[list[int]] = [[] for _ in range(graph.nodes)]
    for node in range(graph.nodes):
        for parent in graph.parents(node):
            children[parent].append(node)
    for node in reversed(graph.order):
        if state[node] != AGREEING and children[node]:
            below = [state[child] for child in children[node]]
            if all(s in (AGREEING, HEALED) for s in below):
                state[node] = HEALED
