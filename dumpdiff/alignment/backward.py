"""Evidence of the backward pass: the gradients of two paired values are the same gradient, whatever they came to."""

from __future__ import annotations

from ..graph import Gradients
from .matching import Matching


def by_gradient(matching: Matching, target: Gradients, reference: Gradients) -> bool:
    """Pair gradients of paired values, and what goes back between paired values; true if any pair was added."""
    progress = False
    for value, gradient in target.of.items():
        partner = reference.of.get(int(matching.classes_t[value]))
        if partner is not None:
            progress |= matching.pair(gradient, partner, "gradient", 0.75)
    for (output, given, detour), gradient in target.through.items():
        partner = reference.through.get((int(matching.classes_t[output]), int(matching.classes_t[given]), detour))
        if partner is not None:
            progress |= matching.pair(gradient, partner, "gradient", 0.7)
    return progress
