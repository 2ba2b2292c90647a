"""Instructions for the next dump: files, lines to paste, commands, costs."""

from __future__ import annotations

from collections.abc import Iterator

from ..capture.next_dump import NextDump, NextDumps


def to_text(narrowed: NextDumps) -> str:
    """Return the instructions; each command is on a line of its own, indented by four."""
    return "\n".join(_list_lines(narrowed)) + "\n"


def _list_lines(narrowed: NextDumps) -> Iterator[str]:
    yield "next: whole tensors around"
    for finding in narrowed.findings:
        yield f"  {finding.rank}  {finding.title}"
    yield from _list_side_lines(narrowed.target)
    yield from _list_side_lines(narrowed.reference)
    yield ""
    yield "then"
    for command in narrowed.commands:
        yield f"    {command}"


def _list_side_lines(plan: NextDump) -> Iterator[str]:
    yield ""
    if not plan.ops:
        yield f"{plan.side}: nothing to dump, the whole tensors are there"
        return
    yield f"{plan.side}: {len(plan.ops)} ops, {plan.cost} per step and rank"
    yield f"  (whole tensors of all ops: {plan.full_cost})"
    for line in plan.instructions:
        yield f"    {line}".rstrip()
