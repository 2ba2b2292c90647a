"""Explain a finding: which side is faulty, and why, by hypotheses tried on its whole tensors.

``explain(comparison, findings)`` is the whole package. A hypothesis is a small object in one
of the modules of ``hypotheses/``; docs/explain.md describes how hypotheses are judged.
"""

from .explanation import explain

__all__ = ["explain"]
