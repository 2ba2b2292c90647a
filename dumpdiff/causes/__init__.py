"""Which side departs at a finding, and why: hypotheses, tried on the whole tensors around it.

``explain(comparison, rules, findings)`` is the whole package. A hypothesis is a small object in one of the modules of
``hypotheses/``; docs/explain.md says how it is judged.
"""

from .explanation import explain

__all__ = ["explain"]
