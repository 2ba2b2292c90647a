"""Lines around the source line of a finding, where the file is readable and is the recorded one.

A dump names a file without its folder. The file is looked for in the current folder, in those of
the dumps, and in two folders above each. It counts only if its line is the recorded one, so neither
another version nor a foreign file of that name is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..model.errors import DumpError
from ..model.finding import Finding
from ..model.finding_context import Neighborhood, SourceExcerpt
from ..model.input_files import is_plain_name, read_input_text
from ..model.result import Result

_LINES_BEFORE, _LINES_AFTER = 5, 4  #: ten lines with the finding's own
_MAX_BYTES = 4 << 20  #: of a file of source code
_MAX_DIGITS = 8  #: of the number of a line
_LEVELS_ABOVE = 2  #: from ``runs/target/dump`` to the script that made it


def list_source_folders(result: Result) -> list[Path]:
    """Return the folders in which the files of source code may lie, each once."""
    folders = [Path.cwd()]
    for side in (result.target, result.reference):
        path = Path(side.source.path).absolute()
        folders += [path, *list(path.parents)[:_LEVELS_ABOVE]]
    return list(dict.fromkeys(folders))


def find_excerpts(
    finding: Finding, sides: tuple[Neighborhood, Neighborhood], folders: Sequence[Path]
) -> Iterator[SourceExcerpt]:
    """Yield the lines around the source line of each side, at most one excerpt a side."""
    ops_of_sides = (finding.target_ops, finding.reference_ops)
    for name, neighborhood, ops in zip(("target", "reference"), sides, ops_of_sides, strict=True):
        place = finding.source.get(name, "")
        for node in neighborhood.nodes:
            if node.op in ops and node.source == place and node.stack:
                excerpt = _read_excerpt(name, place, node.stack.splitlines()[0], folders)
                if excerpt is not None:
                    yield excerpt
                break


def _read_excerpt(
    side: str, place: str, recorded_line: str, folders: Sequence[Path]
) -> SourceExcerpt | None:
    """Return the lines around ``place`` (model.py:57); None if no file has the recorded line."""
    name, _, number = place.rpartition(":")
    is_number = number.isdecimal() and len(number) <= _MAX_DIGITS
    if not (is_plain_name(name) and name.endswith(".py") and is_number):
        return None
    row = int(number) - 1
    for folder in folders:
        try:
            lines = read_input_text(folder / name, _MAX_BYTES, errors="replace").splitlines()
        except (DumpError, OSError):
            continue
        code = lines[row].strip() if 0 <= row < len(lines) else ""
        if code and recorded_line.endswith(f": {code}"):  # after the name of the function
            first_row = max(0, row - _LINES_BEFORE)
            shown_lines = tuple(lines[first_row : row + _LINES_AFTER + 1])
            return SourceExcerpt(side, place, first_row + 1, int(number), shown_lines)
    return None
