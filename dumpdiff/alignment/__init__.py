"""Which tensor of one side is which of the other: four kinds of evidence, joined.

``align(target, reference, rules)`` is the whole package.
"""

from .fused_groups import Group
from .stages import Alignment, align

__all__ = ["Alignment", "Group", "align"]
