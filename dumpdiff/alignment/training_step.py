"""Evidence of the training step: gradients of paired values, new weights and moments of paired parameters.

New weights and moments differ where a step does, and an update rule is written in many ways. But a new weight is near
the old one, and in a first step a moment is a power of the gradient times a number: the shape of its distribution says
which.
"""

from __future__ import annotations

import numpy as np

from ..graph import Flow, Gradients
from ..model.trace import OPTIMIZER
from .matches import Matching
from .values import Fingerprints, distance

_STEP = 0.05  # relative: a step that moves a weight farther is no step
_MOST = 64  # values of one parameter's update: the longest rule has some twenty


def by_gradient(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair gradients of paired values, and what goes back between paired values; true if any pair was added."""
    progress = False
    for value, gradient in target.of.items():
        partner = reference.of.get(int(matching.classes_t[value]))
        if partner is not None:
            progress |= matching.pair(gradient, partner, "gradient", 0.75)
    for (output, given, detour), gradient in target.through.items():
        partner = reference.through.get(
            (int(matching.classes_t[output]), int(matching.classes_t[given]), detour)
        )
        if partner is not None:
            progress |= matching.pair(gradient, partner, "gradient", 0.7)
    return progress


def by_update(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair new weights and moments of paired parameters; true if any pair was added."""
    if not all(OPTIMIZER in flow.phases for flow in (matching.target, matching.reference)):
        return False
    prints_t, prints_r = matching.prints_t.normalised(), matching.prints_r.normalised()
    progress = False
    for weight, gradient in target.of.items():
        other = int(matching.classes_t[weight])
        if (
            matching.producer_t[weight] >= 0
            or other not in reference.of
            or matching.producer_r[other] >= 0
        ):
            continue
        kept_t = _kept(matching.target, weight, gradient)
        kept_r = _kept(matching.reference, other, reference.of[other])
        new_t, new_r = (
            _near(matching.prints_t, weight, kept_t),
            _near(matching.prints_r, other, kept_r),
        )
        if new_t and new_r:
            progress |= matching.pair(new_t[-1], new_r[-1], "update", 0.8)
        moments_r = [
            value for value in kept_r if value not in new_r and matching.classes_r[value] < 0
        ]
        for t in (
            value
            for value in reversed(kept_t)
            if value not in new_t and matching.classes_t[value] < 0
        ):
            alike = [
                r for r in moments_r if _gap(prints_t, t, prints_r, r) <= 16 * matching.tolerance
            ]
            if alike and matching.pair(t, alike[-1], "update", 0.7):
                moments_r.remove(alike[-1])
                progress = True
    return progress


def _kept(flow: Flow, weight: int, gradient: int) -> list[int]:
    """Values of a weight's size that the optimizer computes from it or its gradient and keeps, in order of execution.

    Kept is what is written in place or assigned, or what no further step of the update reads.
    """
    kinds = flow.trace.ops["kind"]
    found: dict[int, bool] = {}
    todo = [weight, gradient]
    for value in todo:
        for op in flow.readers[value]:
            if flow.phases[op] != OPTIMIZER or len(found) > _MOST:
                continue
            for written in flow.writes[op]:
                if (
                    written not in found
                    and flow.sizes[written] == flow.sizes[weight]
                    and flow.producers[written] == op
                ):
                    found[written] = kinds.iat[op].endswith("_")
                    todo.append(written)
    for value in found:
        after = [op for op in flow.readers[value] if flow.phases[op] == OPTIMIZER]
        assigned = any(kinds.iat[op].startswith("Assign") for op in after)
        found[value] |= assigned or not any(
            written in found for op in after for written in flow.writes[op]
        )
    return sorted(
        (value for value, kept in found.items() if kept),
        key=lambda value: int(flow.producers[value]),
    )


def _near(prints: Fingerprints, weight: int, values: list[int]) -> list[int]:
    return [value for value in values if _gap(prints, value, prints, weight) <= _STEP]


def _gap(one: Fingerprints, t: int, other: Fingerprints, r: int) -> float:
    return float(distance(one, np.array([t]), other, np.array([r]))[0])
