"""Where the runs part, and how much could be compared.

``locate(comparison, rules, min_coverage)`` is the whole package.
"""

from .verdict import locate

__all__ = ["locate"]
