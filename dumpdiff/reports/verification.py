"""The verification of one dump in a terminal and as JSON, for ``dumpdiff verify``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ..model.trace import Problem
from ..verification import Check, Contradiction, Verification
from .alignment.summary import format_source
from .formats.blocks import Block, ListBlock, TableBlock, write_blocks
from .formats.json import convert_problem
from .language import translate, use_chosen_language
from .sentences import translate_sentence
from .stages.stage import build_document, write_headline


@use_chosen_language()
def write(
    verification: Verification, console: Console, *, limit: int = 10, quiet: bool = False
) -> None:
    """Print the answer, then, unless ``quiet``, what was checked and what contradicts."""
    write_headline(verification.to_stage(), console, quiet=quiet)
    if not quiet:
        write_blocks(console, build_blocks(verification, limit))


def build_blocks(verification: Verification, limit: int) -> Iterator[Block]:
    """Yield the dump, the checks with their counts, and up to ``limit`` contradictions."""
    source = verification.source
    contents = translate(
        "{source}: {ops} ops, {tensors} tensors, {path}",
        source=format_source(source),
        ops=verification.ops,
        tensors=verification.tensors,
        path=source.path,
    )
    yield ListBlock("dump", (contents,))
    rows = tuple(
        (
            translate_sentence(check.name),
            f"{check.checked:,}",
            f"{check.not_checkable:,}",
            f"{len(check.contradictions):,}",
        )
        for check in verification.checks
    )
    yield TableBlock("check", ("checked", "not checkable", "contradictions"), rows)
    contradictions = verification.contradictions
    lines = [_format_contradiction(item) for item in contradictions[:limit]]
    n_more = len(contradictions) - limit
    if n_more > 0:
        lines.append(
            translate(
                "... {count} more, --limit {limit} shows them",
                count=f"{n_more:,}",
                limit=len(contradictions),
            )
        )
    yield ListBlock("contradictions", tuple(lines))
    yield ListBlock("problems", tuple(map(str, verification.problems[:limit])))
    yield ListBlock("not checked", tuple(map(translate_sentence, verification.missing)))
    yield ListBlock("notes", tuple(map(translate_sentence, verification.notes)))


def _format_contradiction(item: Contradiction) -> str:
    place = f" ({item.file})" if item.file else ""
    colon = translate(": ")
    facts = translate(
        "{recorded}, but {computed}",
        recorded=translate_sentence(item.recorded),
        computed=translate_sentence(item.computed),
    )
    return f"{translate(item.kind)}{colon}{item.op} {item.slot}{colon}{facts}{place}"


def to_json(verification: Verification) -> dict[str, Any]:
    """Return the verification as plain data, complete."""
    source = verification.source
    return build_document(
        verification.to_stage(),
        dump={
            "path": os.path.abspath(source.path),
            "framework": source.framework,
            "format": source.format,
            "era": source.format_variant,
            "step": source.step,
            "rank": source.number,
            "graph": source.graph,
            "ops": verification.ops,
            "tensors": verification.tensors,
            "files_read": verification.files_read,
            "files_total": verification.files_total,
        },
        checks=[_convert_check(check) for check in verification.checks],
        contradictions=[_convert_contradiction(item) for item in verification.contradictions],
        problems=[_convert_problem(problem) for problem in verification.problems],
        notes=verification.notes,
    )


def _convert_check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "checked": check.checked,
        "not_checkable": check.not_checkable,
        "contradictions": len(check.contradictions),
    }


def _convert_contradiction(item: Contradiction) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "op": item.op,
        "slot": item.slot,
        "file": item.file,
        "recorded": item.recorded,
        "computed": item.computed,
    }


def _convert_problem(problem: Problem) -> dict[str, Any]:
    return {**convert_problem(problem), "op": problem.op, "weakens": problem.weakens}
