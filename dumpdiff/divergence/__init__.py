"""Where the runs diverge, and how much could be compared.

``locate(comparison, rules, min_coverage)`` is the entry point.
"""

from .verdict import locate

__all__ = ["locate"]
