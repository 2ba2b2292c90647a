"""Does a parallel run contradict itself?

``check_run`` checks what holds in every correct run, without a reference: what collectives give
follows from what the ranks gave, replicated values are equal, parameters stay equal.
"""

from .run_check import RunCheck, check_run
from .violations import INVARIANTS, InvariantCheck, Violation

__all__ = ["INVARIANTS", "InvariantCheck", "RunCheck", "Violation", "check_run"]
