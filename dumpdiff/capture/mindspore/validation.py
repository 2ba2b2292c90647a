"""The whole check of a configuration."""

from __future__ import annotations

from collections.abc import Iterable

from . import field_checks, rules
from .target import Target
from .violations import SEVERITIES, Violation

#: Every rule but those of the file's text, in the order of the check.
RULES = (*field_checks.RULES, *rules.RULES)


def check(
    config: object, target: Target, *, run_is_local: bool = True, names: tuple[str, ...] | None = None
) -> tuple[Violation, ...]:
    """What MindSpore would refuse, ignore or answer with an empty dump, worst first; nothing if ``config`` holds.

    ``config`` is the content of the file, as JSON has it. ``here``: the training runs on this machine, so that the
    folder to write to is tried out (an empty one is made and removed) and the environment counts. ``names`` are the
    full names of all operators and parameters as the runtime has them; with them an entry of kernels that selects
    none is told for certain.
    """
    settings, found = field_checks.build_settings(config, target, run_is_local, names)
    if settings is not None:
        for violations in rules.CHECKS:
            found += violations(settings)
    return sort_by_severity(found)


def sort_by_severity(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """By severity, and within one in the order given."""
    order = list(SEVERITIES)
    return tuple(sorted(violations, key=lambda violation: order.index(violation.severity)))
