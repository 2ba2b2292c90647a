"""The input that separates the places that are left best."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .decision import Decision
from .evidence import Evidence
from .likelihoods import Place

#: Key of a case -> the groups of places that its comparison tells apart. What a comparison says
#: nothing about is one more group. In the order of their cost: a run must be repeated for the last
#: ones.
_SEPARATED_PLACES: Mapping[str, tuple[tuple[Place, ...], ...]] = {
    "log": (
        ("data", "weights", "forward"), ("backward",), ("schedule",), ("optimizer",), ("long run",),
    ),
    "data": (("data",),),
    "weights": (("weights",),),
    "dump": (("data",), ("weights",), ("forward",), ("backward",)),
    "steps": (("schedule",), ("optimizer",)),
}  # fmt: skip
#: Key of a case -> the comparison that it is for.
_COMPARISONS: Mapping[str, str] = {
    "log": "logs", "data": "data", "weights": "weights", "dump": "dumps", "steps": "optimizer",
}  # fmt: skip
#: An input that separates less than this many bits is not worth giving.
_LEAST_BITS = 0.05


def choose_next_input(evidence: Evidence, decision: Decision) -> str:
    """Return the key of the missing input that separates most, '' if none does.

    That is the one whose groups of places have the largest entropy, in bits, by the probabilities
    of the places that are left. Of equal ones the cheaper one is returned.
    """
    best_key, most_bits = "", _LEAST_BITS
    for key, groups in _SEPARATED_PLACES.items():
        if getattr(evidence, _COMPARISONS[key]) is not None:
            continue
        bits = _compute_entropy(decision, groups)
        if bits > most_bits + 1e-9:
            best_key, most_bits = key, bits
    return best_key


def _compute_entropy(decision: Decision, groups: tuple[tuple[Place, ...], ...]) -> float:
    """Return the entropy of the groups, and of all other places together, in bits."""
    total = sum(decision.belief[place] for place in decision.candidates)
    if not total:
        return 0.0
    shares = []
    for group in groups:
        mass = sum(decision.belief[place] for place in group if place in decision.candidates)
        shares.append(mass / total)
    shares.append(max(0.0, 1 - sum(shares)))
    return -sum(share * math.log2(share) for share in shares if share > 0)
