"""Findings drawn, as plain data: the dataflow around each on both sides, and where in its tensor the difference lies.

``closeups(comparison, result, rules)`` is the whole package.
"""

from .finding_contexts import closeups

__all__ = ["closeups"]
