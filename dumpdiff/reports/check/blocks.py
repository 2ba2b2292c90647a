"""What the check of a run shows, as blocks for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from ...invariants import INVARIANTS, RunCheck, Violation
from ..alignment.summary import format_source
from ..formats.blocks import Block, ListBlock, TableBlock
from ..language import translate
from ..sentences import translate_sentence


def build_blocks(check: RunCheck, limit: int) -> Iterator[Block]:
    """Yield the run, up to ``limit`` violations, the invariants with counts, what is missing."""
    ranks = translate_sentence(_list_numbers("rank", check.ranks))
    lines = [format_source(check.source), f"{ranks}{translate(', ')}{check.path}"]
    yield ListBlock("run", tuple(lines))
    yield ListBlock("groups", check.groups)
    violations = check.violations
    shown_lines = [format_violation(item) for item in violations[:limit]]
    n_more = len(violations) - limit
    if n_more > 0:
        shown_lines.append(
            translate(
                "... {count} more, --limit {limit} shows them",
                count=f"{n_more:,}",
                limit=len(violations),
            )
        )
    yield ListBlock("violations", tuple(shown_lines))
    rows = []
    for item in check.checks:
        n_unchecked = sum(item.unchecked.values())
        if item.checked or n_unchecked:
            counts = (item.checked, n_unchecked, len(item.violations))
            sentence = translate_sentence(INVARIANTS[item.name])
            rows.append((sentence, *(f"{count:,}" for count in counts)))
    yield TableBlock("invariant", ("checked", "not checkable", "violations"), tuple(rows))
    yield ListBlock("problems", tuple(str(problem) for problem in check.problems[:limit]))
    yield ListBlock("not checked", tuple(map(translate_sentence, check.missing)))
    yield ListBlock("notes", tuple(map(translate_sentence, check.notes)))


def format_violation(violation: Violation) -> str:
    """Return one line: invariant, rank, group, op, and both values."""
    place = format_violation_place(violation)
    name = violation.op if violation.scope and violation.op != violation.scope else ""
    text = translate_sentence(f"{violation.invariant}: {place}: {violation.message}")
    return f"{text} [{name} {violation.slot}".rstrip() + "]" if name else text


def format_violation_place(violation: Violation) -> str:
    """Return 'rank 3 (tp 2,3), step 0'."""
    words = _list_numbers("rank", violation.ranks)
    if violation.group:
        words += f" ({violation.group})"
    if violation.step is not None:
        words += f", step {violation.step}"
    return words


def _list_numbers(label: str, numbers: tuple[int, ...]) -> str:
    listed_numbers = ", ".join(map(str, numbers))
    return f"{label} {listed_numbers}" if len(numbers) == 1 else f"{label}s {listed_numbers}"
