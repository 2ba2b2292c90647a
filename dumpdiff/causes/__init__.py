"""Explain a finding: which side is faulty, and why, by hypotheses tried on its whole tensors.

``explain(comparison, findings)`` is the entry point, and ``iterate_needed_values`` says what it
reads. A hypothesis is a small object in one of the modules of ``hypotheses/``; docs/explain.md
describes how hypotheses are judged.
"""

from .explanation import explain
from .needed_values import iterate_needed_values, list_finding_op_ids

__all__ = ["explain", "iterate_needed_values", "list_finding_op_ids"]
