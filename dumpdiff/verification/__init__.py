"""Does one dump contradict itself?

``verify_trace`` opens every file of a trace and makes all checks. ``attach_checks`` checks the
records, and the files as somebody else opens them; ``attach_all_checks`` opens all of them first.
``find_identity`` tells whether two traces are one dump.
"""

from .contradictions import Check, Contradiction
from .identity import find_identity
from .trace_checks import (
    JoinedChecks,
    TraceChecks,
    attach_all_checks,
    attach_checks,
    attach_file_checks,
    check_trace,
)
from .verification import Verification, verify_trace

__all__ = [
    "Check",
    "Contradiction",
    "JoinedChecks",
    "TraceChecks",
    "Verification",
    "attach_all_checks",
    "attach_checks",
    "attach_file_checks",
    "check_trace",
    "find_identity",
    "verify_trace",
]
