"""Check a configuration against every rule."""

from __future__ import annotations

from collections.abc import Iterable

from . import field_checks, rules
from .target import Target
from .violations import SEVERITIES, Violation

#: Every rule except those of the text of the file, in the order of the check.
RULES = (*field_checks.RULES, *rules.RULES)


def check(
    config: object,
    target: Target,
    *,
    run_is_local: bool = True,
    names: tuple[str, ...] | None = None,
) -> tuple[Violation, ...]:
    """Return what MindSpore would refuse, ignore, or answer with an empty dump, worst first.

    ``config`` is the parsed JSON of the file. With ``run_is_local`` the training runs on this
    machine: the check then tries to write to the folder of the dump (it makes an empty folder and
    removes it) and looks at the environment. ``names`` are the full names of all operators and
    parameters in the runtime; with them the check finds entries of ``kernels`` that select nothing.
    """
    settings, violations = field_checks.build_settings(config, target, run_is_local, names)
    if settings is not None:
        for find_violations in rules.CHECKS:
            violations += find_violations(settings)
    return sort_by_severity(violations)


def sort_by_severity(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return the violations by severity, worst first; equal ones keep their order."""
    order = list(SEVERITIES)
    return tuple(sorted(violations, key=lambda violation: order.index(violation.severity)))
