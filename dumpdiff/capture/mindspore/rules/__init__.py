"""Rules that concern several fields or values: one module per subject, with rules and checks."""

from collections.abc import Callable, Iterator

from ..settings import Settings
from ..violations import Rule, Violation
from . import data, debug, kernels, mode, place, steps

#: Yields the violations of one subject.
Check = Callable[[Settings], Iterator[Violation]]

CHECKS: tuple[Check, ...] = (
    mode.find_violations,
    place.find_violations,
    steps.find_violations,
    data.find_violations,
    kernels.find_violations,
    debug.find_violations,
)

RULES: tuple[Rule, ...] = (
    *mode.RULES,
    *place.RULES,
    *steps.RULES,
    *data.RULES,
    *kernels.RULES,
    *debug.RULES,
)

__all__ = ["CHECKS", "RULES", "Check"]
