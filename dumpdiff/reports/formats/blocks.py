"""Titled tables and lists as data, so that a terminal, a page and Markdown show the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.cells import set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...model.formatting import escape_control
from ..language import translate
from ..sentences import translate_known_sentence

#: Words of a cell that are no names.
_WORDS = ("agree", "differ", "inconclusive", "equal")
_LABEL_WIDTH = 11  #: columns of a console, before the description of a side


@dataclass(frozen=True)
class TableBlock:
    """A table; its title is the header of the first column."""

    title: str
    columns: tuple[str, ...]  #: headers of the other columns
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ListBlock:
    """Sentences under a title."""

    title: str
    lines: tuple[str, ...]
    limit: int | None = None  #: lines that a terminal shows, None: all


Block = TableBlock | ListBlock


def translate_block(block: Block) -> Block:
    """Return a table or list with its sentences in the current language.

    A text without a blank is a name, unless it is one of the words for a comparison.
    """
    title = translate(block.title)
    if title == block.title:
        title = translate_known_sentence(title)
    if isinstance(block, ListBlock):
        return replace(block, title=title, lines=tuple(map(translate_known_sentence, block.lines)))
    rows = []
    for row in block.rows:
        cells = (
            translate_known_sentence(cell) if " " in cell or cell in _WORDS else cell
            for cell in row
        )
        rows.append(tuple(cells))
    return replace(block, title=title, rows=tuple(rows))


def write_sides(console: Console, target: str, reference: str) -> None:
    """Print what the two sides are, one line each, after a blank line."""
    console.print()
    for side, description in (("target", target), ("reference", reference)):
        label = set_cell_size(translate(side), _LABEL_WIDTH)
        line = Text.assemble((label, "bold"), escape_control(description))
        console.print(line, soft_wrap=True)


def write_blocks(console: Console, blocks: Iterable[Block]) -> None:
    """Print tables and lists, with a blank line before each; empty ones are omitted."""
    for block in blocks:
        if isinstance(block, TableBlock):
            _write_table(console, block.title, block.columns, block.rows)
        else:
            _write_list(console, block.title, block.lines, block.limit)


def _write_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in (title, *columns):
        table.add_column(translate(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_control(cell), overflow="fold") for cell in row))
    console.print()
    console.print(table)


def _write_list(console: Console, title: str, lines: Sequence[str], limit: int | None) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(translate(title), style="bold"))
    for line in lines[:limit]:
        console.print(Text(f"  {escape_control(line)}", overflow="fold"), soft_wrap=True)
    if limit is not None and len(lines) > limit:
        more = translate("... {count} more, -v shows them", count=len(lines) - limit)
        console.print(Text(f"  {more}"))
