"""A checklist in a terminal, as Markdown and as JSON, for ``dumpdiff checklist``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from ...model.formatting import escape_control
from ...run_settings.checklist import Answer, Checklist, State
from ..formats.blocks import Block, TableBlock
from ..language import translate, use_chosen_language
from ..sentences import translate_sentence
from .stage import build_document, write_headline

_MARKS = {
    "holds": "[x]",
    "fails": "[!]",
    "advice": "[~]",
    "inconclusive": "[?]",
    "open": "[ ]",
    "unused": "[-]",
}
MEANINGS = {
    "holds": "holds",
    "fails": "fails",
    "advice": "advised while aligning",
    "inconclusive": "inconclusive",
    "open": "to tick off",
    "unused": "not in these models",
}
_COLORS = {
    "holds": "green",
    "fails": "bold red",
    "advice": "yellow",
    "inconclusive": "yellow",
    "open": "",
    "unused": "dim",
}
_MARKDOWN_LABELS = {
    "fails": "**fails**: ",
    "advice": "*advised*: ",
    "inconclusive": "*inconclusive*: ",
    "unused": "*not in these models*: ",
}
#: States that need attention, with the title of their table.
_ATTENTION: Mapping[State, str] = {
    "fails": "fails",
    "inconclusive": "inconclusive",
    "advice": "advised while aligning",
}
_SHORT = 3  #: lines of evidence of an item that are shown without -v


@use_chosen_language()
def write(
    checklist: Checklist, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print every item by section with its mark.

    Evidence is printed for items that need attention; with ``verbose`` for all.
    """
    if checklist.has_input:
        write_headline(checklist.to_stage(), console, quiet=quiet)
    else:
        headline = translate_sentence(checklist.to_stage().headline)
        line = f"{translate('checklist')}{translate(': ')}{headline}"
        console.print(Text(line), soft_wrap=True)
    if quiet:
        return
    for title, answers in _group_by_section(checklist):
        console.print()
        console.print(Text(translate_sentence(title), style="bold"))
        for answer in answers:
            mark = (_MARKS[answer.state], _COLORS[answer.state])
            requirement = translate_sentence(answer.item.requirement)
            console.print(Text.assemble(mark, " ", requirement), soft_wrap=True)
            for sentence in _select_evidence(answer, verbose):
                line = escape_control(translate_sentence(sentence))
                console.print(Text(f"      {line}", style="dim"), soft_wrap=True)
    legend = "   ".join(f"{mark} {translate(MEANINGS[state])}" for state, mark in _MARKS.items())
    console.print()
    console.print(Text(legend, style="dim"))


def build_blocks(checklist: Checklist) -> Iterator[Block]:
    """Yield the items that need attention, with their evidence."""
    for state, title in _ATTENTION.items():
        answers = checklist.select_answers(state)
        rows = tuple((answer.item.requirement, "; ".join(answer.evidence)) for answer in answers)
        yield TableBlock(title, ("what is known",), rows)


def write_markdown(checklist: Checklist, stream: IO[bytes]) -> None:
    """Write task lists in Markdown, with a tick for items that hold, and all evidence."""
    lines = [f"# Checklist: {escape_control(checklist.to_stage().headline)}", ""]
    for title, answers in _group_by_section(checklist):
        lines += [f"## {title}", ""]
        for answer in answers:
            tick = "x" if answer.state in ("holds", "unused") else " "
            label = _MARKDOWN_LABELS.get(answer.state, "")
            lines.append(f"- [{tick}] {label}{answer.item.requirement}")
            for evidence in answer.evidence:
                code = escape_control(evidence).replace("`", "'")
                lines.append(f"  - `{code}`")
        lines.append("")
    stream.write("\n".join(lines).encode("utf-8", errors="backslashreplace"))


def _group_by_section(checklist: Checklist) -> Iterator[tuple[str, list[Answer]]]:
    for section, answers in groupby(checklist.answers, key=lambda answer: answer.item.section):
        yield checklist.titles[section], list(answers)


def _select_evidence(answer: Answer, verbose: bool) -> tuple[str, ...]:
    if verbose:
        return answer.evidence
    return answer.evidence[:_SHORT] if answer.state in _ATTENTION else ()


def to_json(checklist: Checklist) -> dict[str, Any]:
    """Return the checklist as plain data."""
    items = [_convert_answer(answer) for answer in checklist.answers]
    return build_document(checklist.to_stage(), items=items)


def _convert_answer(answer: Answer) -> dict[str, Any]:
    return {
        "item": answer.item.name,
        "section": answer.item.section,
        "requirement": answer.item.requirement,
        "state": answer.state,
        "evidence": answer.evidence,
    }
