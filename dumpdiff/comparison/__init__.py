"""How far apart aligned tensors are, and how far they may be.

``compare_pairs(alignment, rules)`` is the whole package; ``spread_of(comparison)`` reads a second run of the reference
from its comparison with the first.
"""

from .baseline import spread_of
from .pairs import Comparison, compare_pairs
from .spread import Spread
from .tolerances import NO_INFORMATION

__all__ = ["NO_INFORMATION", "Comparison", "Spread", "compare_pairs", "spread_of"]
