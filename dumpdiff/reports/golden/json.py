"""A golden check as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import IO, Any

from ...golden_reference import GoldenCheck
from ..formats.json import convert_problem, write_document
from ..stages.stage import build_document
from .blocks import build_stage


def write(check: GoldenCheck, stream: IO[bytes]) -> None:
    """Write the check as UTF-8."""
    write_document(to_json(check), stream)


def to_json(check: GoldenCheck) -> dict[str, Any]:
    """Return the check as plain data."""
    return build_document(
        build_stage(check),
        tolerance=check.tolerance,
        counts=check.counts,
        by_statistics=check.by_statistics,
        differences=[asdict(item) for item in check.differences],
        problems=[convert_problem(problem) for problem in check.problems],
    )
