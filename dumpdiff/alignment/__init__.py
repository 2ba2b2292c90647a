"""Pairs the tensors of the two sides by four kinds of evidence: value, name, structure and role.

``align(target, reference, rules)`` is the entry point.
"""

from .fused_groups import FusedGroup
from .slot_pairs import SlotPair
from .stages import Alignment, align

__all__ = ["Alignment", "FusedGroup", "SlotPair", "align"]
