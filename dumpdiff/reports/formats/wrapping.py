"""Lines for a terminal: broken at blanks, and long operator names after a slash or a dot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

#: A piece of a name ends with a slash or a dot between letters; a number such as 4.3e-3 is whole.
_PIECE_ENDS = re.compile(r"(?<=[/\\])(?=\w)|(?<=\w\.)(?=[A-Za-z_])")
#: A name that fills more of a line than this begins in the line where it stands.
_LONG_SHARE = 0.5
_MIN_COLUMNS = 12  #: a column of a table that is narrower cannot be read


def wrap_names(text: str, width: int) -> list[str]:
    """Return the lines of ``text``, each of at most ``width`` columns.

    >>> wrap_names("in Default/layers-CellList/Add-op12 vs Tensor.add", 24)
    ['in Default/', 'layers-CellList/Add-op12', 'vs Tensor.add']
    """
    lines = [""]
    for word in text.split():
        line = lines[-1]
        blank = " " if line else ""
        if cell_len(line) + cell_len(blank + word) <= width:
            lines[-1] = f"{line}{blank}{word}"
        elif cell_len(word) <= width * _LONG_SHARE:
            lines.append(word)
        else:
            _append_pieces(lines, word, width)
    return [line for line in lines if line] or [""]


def _append_pieces(lines: list[str], name: str, width: int) -> None:
    """Append a long name to the last line, piece by piece."""
    separator = " "
    for piece in _PIECE_ENDS.split(name):
        blank = separator if lines[-1] else ""
        separator = ""
        if cell_len(lines[-1]) + cell_len(blank + piece) <= width:
            lines[-1] += blank + piece
        else:
            lines.extend(chop_cells(piece, width))


@dataclass(frozen=True)
class WrappedText:
    """Text for a console or a cell of a table; it is never markup, and nothing of it is cut."""

    text: str
    style: str = ""
    indent: int = 0  #: blanks before every line
    hanging: int = 0  #: more blanks before every line but the first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield one text for each line."""
        width = max(_MIN_COLUMNS, options.max_width - self.indent - self.hanging)
        blanks = " " * self.indent
        for line in wrap_names(self.text, width):
            yield Text(blanks + line, self.style, no_wrap=True, overflow="ignore")
            blanks = " " * (self.indent + self.hanging)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the columns that the text needs, and would like to have."""
        width = cell_len(self.text) + self.indent
        return Measurement(min(_MIN_COLUMNS, width), width).with_maximum(options.max_width)
