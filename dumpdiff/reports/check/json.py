"""The check of a run as JSON, complete."""

from __future__ import annotations

import os
from typing import IO, Any

from ...invariants import INVARIANTS, InvariantCheck, RunCheck, Violation
from ..formats.json import convert_problem, write_document
from ..stages.stage import build_document


def write(check: RunCheck, stream: IO[bytes]) -> None:
    """Write the check as UTF-8."""
    write_document(to_json(check), stream)


def to_json(check: RunCheck) -> dict[str, Any]:
    """Return the check as plain data."""
    source = check.source
    return build_document(
        check.to_stage(),
        dump={
            "path": os.path.abspath(check.path),
            "framework": source.framework,
            "format": source.format,
            "era": source.format_variant,
            "steps": list(check.steps),
            "ranks": list(check.ranks),
            "groups": list(check.groups),
        },
        invariants=[_convert_check(item) for item in check.checks],
        violations=[_convert_violation(item) for item in check.violations],
        problems=[convert_problem(problem) for problem in check.problems],
        notes=check.notes,
    )


def _convert_check(check: InvariantCheck) -> dict[str, Any]:
    return {
        "name": check.name,
        "text": INVARIANTS[check.name],
        "checked": check.checked,
        "violations": len(check.violations),
        "unchecked": [
            {"reason": reason, "count": count} for reason, count in check.unchecked.items()
        ],
    }


def _convert_violation(violation: Violation) -> dict[str, Any]:
    return {
        "invariant": violation.invariant,
        "step": violation.step,
        "ranks": list(violation.ranks),
        "group": violation.group,
        "op": violation.op,
        "slot": violation.slot,
        "scope": violation.scope,
        "recorded": violation.recorded,
        "expected": violation.expected,
        "further": violation.n_further,
    }
