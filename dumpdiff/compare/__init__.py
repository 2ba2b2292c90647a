"""How far apart aligned tensors are, and how far they may be.

``compare_pairs(alignment, rules)`` is the whole package.
"""

from .pairs import Comparison, compare_pairs

__all__ = ["Comparison", "compare_pairs"]
