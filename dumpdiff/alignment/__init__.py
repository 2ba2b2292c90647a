"""Pairs the tensors of the two sides by four kinds of evidence: value, name, structure and role.

``align(target, reference, rules)`` is the entry point; ``align_sides`` takes sides that were
prepared before.
"""

from .fused_groups import FusedGroup
from .sides import PreparedSide, prepare_side
from .slot_pairs import SlotPair
from .stages import Alignment, align, align_sides

__all__ = [
    "Alignment",
    "FusedGroup",
    "PreparedSide",
    "SlotPair",
    "align",
    "align_sides",
    "prepare_side",
]
