"""Does one dump contradict itself?

``verify_trace(trace)`` opens every file and makes all checks. :class:`FileChecks` makes the checks
of files as they are opened by somebody else; ``check_records(trace)`` opens none.
"""

from .contradictions import Check, Contradiction, to_problems
from .files import FileChecks
from .records import check_records
from .verification import Verification, verify_trace

__all__ = [
    "Check",
    "Contradiction",
    "FileChecks",
    "Verification",
    "check_records",
    "to_problems",
    "verify_trace",
]
