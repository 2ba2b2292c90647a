"""The rules between fields, by what they are about; each module holds its rules and the code that finds them broken."""

from collections.abc import Callable, Iterator

from ..settings import Settings
from ..violations import Rule, Violation
from . import data, debug, kernels, mode, place, steps

#: What finds the violations of one subject.
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
