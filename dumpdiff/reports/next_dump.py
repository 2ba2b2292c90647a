"""What to dump next, as text to follow: files, lines to paste, commands, costs."""

from __future__ import annotations

from collections.abc import Iterator

from ..capture.next_dump import Narrowed, NextDump


def to_text(narrowed: Narrowed) -> str:
    """The whole instruction; commands stand on lines of their own, indented by four."""
    return "\n".join(_lines(narrowed)) + "\n"


def _lines(narrowed: Narrowed) -> Iterator[str]:
    yield "next: whole tensors around"
    for finding in narrowed.findings:
        yield f"  {finding.rank}  {finding.title}"
    for side in (narrowed.target, narrowed.reference):
        yield from _side(side)
    yield ""
    yield "then"
    yield from (f"    {command}" for command in narrowed.then)


def _side(side: NextDump) -> Iterator[str]:
    yield ""
    yield f"{side.role}: {len(side.ops)} ops, {side.cost} a step and rank"
    yield f"  (whole tensors of everything: {side.of_everything})"
    yield from (f"    {line}".rstrip() for line in side.how)
