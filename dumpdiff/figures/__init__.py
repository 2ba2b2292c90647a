"""Finding contexts as plain data: the dataflow around each finding, and where its tensors differ.

:func:`collect_finding_contexts` is the only entry point.
"""

from .finding_contexts import collect_finding_contexts

__all__ = ["collect_finding_contexts"]
