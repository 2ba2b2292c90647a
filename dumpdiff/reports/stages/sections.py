"""How a stage of a triage is said: its verdict and headline first, tables and lists under it; and its JSON.

What stands under the headline is data (:data:`Part`), so that a terminal, a page and Markdown say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import __version__
from ...model.formatting import printable
from ...model.stage import Stage

#: Of the JSON of every stage. Major: a reader of the old form breaks. Minor: something was added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"

COLORS = {"agree": "bold green", "differ": "bold red", "inconclusive": "bold yellow"}


@dataclass(frozen=True)
class TableBlock:
    """A table; its title heads the first column."""

    title: str
    columns: tuple[str, ...]  #: heads of the other columns
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ListBlock:
    """Sentences under a title."""

    title: str
    lines: tuple[str, ...]
    few: int | None = None  #: so many are shown where there is little room, None: all


Block = TableBlock | ListBlock


def write_stage(
    stage: Stage,
    sides: tuple[str, str] | None,
    parts: Iterable[Block],
    console: Console,
    *,
    quiet: bool = False,
) -> None:
    """All of a stage: its headline, then, unless ``quiet``, both sides and the parts."""
    write_headline(stage, console)
    if quiet:
        return
    if sides is not None:
        write_sides(console, *sides)
    write_blocks(console, parts)


def write_headline(stage: Stage, console: Console) -> None:
    """The first line: what was looked at, the verdict, and what it rests on."""
    line = f"{stage.name} {stage.verdict}: {stage.headline}"
    console.print(Text(printable(line), style=COLORS[stage.verdict]), soft_wrap=True)


def write_sides(console: Console, target: str, reference: str) -> None:
    """What the two sides are, a line each, under a blank one."""
    console.print()
    for role, said in (("target", target), ("reference", reference)):
        console.print(Text.assemble((f"{role:<11}", "bold"), printable(said)), soft_wrap=True)


def write_blocks(console: Console, parts: Iterable[Block]) -> None:
    """Tables and lists, a blank line before each; nothing of those that are empty."""
    for part in parts:
        if isinstance(part, TableBlock):
            _write_table(console, part.title, part.columns, part.rows)
        else:
            _write_list(console, part.title, part.lines, part.few)


def _write_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """A table under a blank line; the first column is headed by ``title``. Nothing is printed without rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in (title, *columns):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    if table.row_count:
        console.print()
        console.print(table)


def _write_list(
    console: Console, title: str, lines: Sequence[str], limit: int | None = None
) -> None:
    """Lines under a title; those beyond ``limit`` are counted. Nothing is printed without lines."""
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines[:limit]:
        console.print(Text(f"  {printable(line)}", overflow="fold"), soft_wrap=True)
    if limit is not None and len(lines) > limit:
        console.print(Text(f"  ... {len(lines) - limit} more, -v shows them"))


def build_document(stage: Stage, **parts: Any) -> dict[str, Any]:
    """The JSON of a stage: what all stages have, and what is its own."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        **asdict(stage),
        **parts,
    }
