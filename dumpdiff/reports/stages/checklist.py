"""A checklist for people, as text or Markdown, and for programs, for ``dumpdiff checklist``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from ...model.formatting import printable
from ...run_settings.checklist import Answer, Checklist, State
from .sections import Block, TableBlock, build_document, write_headline

_MARKS = {
    "holds": "[x]",
    "fails": "[!]",
    "advice": "[~]",
    "inconclusive": "[?]",
    "open": "[ ]",
    "unused": "[-]",
}
_COLOUR = {
    "holds": "green",
    "fails": "bold red",
    "advice": "yellow",
    "inconclusive": "yellow",
    "open": "",
    "unused": "dim",
}
_WORDS = {
    "fails": "**fails**: ",
    "advice": "*advised*: ",
    "inconclusive": "*inconclusive*: ",
    "unused": "*not in these models*: ",
}
_AMISS: Mapping[State, str] = {
    "fails": "fails",
    "inconclusive": "inconclusive",
    "advice": "advised while aligning",
}
_LEGEND = "   ".join(
    f"{mark} {meaning}"
    for mark, meaning in zip(
        _MARKS.values(),
        (
            "holds",
            "fails",
            "advised while aligning",
            "inconclusive",
            "to tick off",
            "not in these models",
        ),
        strict=True,
    )
)
_FEW = 3  #: lines of evidence of an item that are shown without -v


def write(
    checklist: Checklist, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print every item by section with its mark; evidence where something is not as it should be, or ``verbose``."""
    write_headline(checklist.to_stage(), console)
    if quiet:
        return
    for title, answers in _sections(checklist):
        console.print()
        console.print(Text(title, style="bold"))
        for answer in answers:
            line = Text.assemble(
                (_MARKS[answer.state], _COLOUR[answer.state]), " ", answer.item.ask
            )
            console.print(line, soft_wrap=True)
            for said in _evidence(answer, verbose):
                console.print(Text(f"      {printable(said)}", style="dim"), soft_wrap=True)
    console.print()
    console.print(Text(_LEGEND, style="dim"))


def build_blocks(checklist: Checklist) -> Iterator[Block]:
    """What is not as it should be, or cannot be told, with what is known of it; not what is left to tick off."""
    for state, title in _AMISS.items():
        answers = checklist.select_answers(state)
        yield TableBlock(
            title,
            ("what is known",),
            tuple((one.item.ask, "; ".join(one.evidence)) for one in answers),
        )


def write_markdown(checklist: Checklist, stream: IO[bytes]) -> None:
    """Write task lists in Markdown: ticked what holds, the rest with what is known of it."""
    lines = [f"# Checklist: {printable(checklist.to_stage().headline)}", ""]
    for title, answers in _sections(checklist):
        lines += [f"## {title}", ""]
        for answer in answers:
            tick = "x" if answer.state in ("holds", "unused") else " "
            word = _WORDS.get(answer.state, "")
            lines.append(f"- [{tick}] {word}{answer.item.ask}")
            lines += [
                f"  - `{printable(said).replace('`', chr(39))}`"
                for said in _evidence(answer, verbose=True)
            ]
        lines.append("")
    stream.write("\n".join(lines).encode("utf-8", errors="backslashreplace"))


def _sections(checklist: Checklist) -> Iterator[tuple[str, list[Answer]]]:
    for section, answers in groupby(checklist.answers, key=lambda answer: answer.item.section):
        yield checklist.titles[section], list(answers)


def _evidence(answer: Answer, verbose: bool) -> tuple[str, ...]:
    if verbose:
        return answer.evidence
    return answer.evidence[:_FEW] if answer.state in ("fails", "advice", "inconclusive") else ()


def to_json(checklist: Checklist) -> dict[str, Any]:
    """The checklist as plain data."""
    return build_document(
        checklist.to_stage(),
        items=[
            {
                "item": answer.item.name,
                "section": answer.item.section,
                "ask": answer.item.ask,
                "state": answer.state,
                "evidence": answer.evidence,
            }
            for answer in checklist.answers
        ],
    )
