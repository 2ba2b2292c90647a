"""The errors of aligned tensors, and the tolerances they are judged against.

``compare_pairs(alignment, rules)`` compares all pairs. ``measure_spread(comparison)`` reads the
spread of the reference from the comparison of a second run of it with the first.
"""

from .baseline import measure_spread
from .inherited_errors import index_weights
from .pairs import Comparison, compare_pairs
from .tolerances import NO_INFORMATION, Spread

__all__ = [
    "NO_INFORMATION",
    "Comparison",
    "Spread",
    "compare_pairs",
    "index_weights",
    "measure_spread",
]
