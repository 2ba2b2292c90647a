"""The description of a single dump, as plain data and as lines in a terminal.

In all functions ``path`` is what the user named, ``parts`` is everything it holds, and ``trace`` is
one of these parts, read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..model.formatting import escape_control
from ..model.input_files import iterate_folders
from ..model.trace import PHASES, Trace
from ..readers.parts import Part
from .alignment.summary import format_source
from .formats.json import convert_problem
from .language import translate, use_chosen_language

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
#:   1.1  process, of a part and of what was read; rank is its number as before
#:   2.0  renamed key of a part: whole -> has_whole_tensors
#:   2.1  dumpdiff_version
SCHEMA_VERSION = "2.1"

_SHORT = 3  #: problems and parts that are listed without -v


def to_json(path: str | Path, parts: Sequence[Part], trace: Trace) -> dict[str, Any]:
    """Return the dump as plain data.

    ``bytes`` is the apparent size of all its files, ``read`` is about ``trace`` alone.
    """
    source = trace.source
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "path": str(path),
        "bytes": _measure_size(Path(path)),
        "steps": _list_numbers(part.step for part in parts),
        "ranks": _list_numbers(part.rank_or_process for part in parts),
        "graphs": _list_numbers(part.graph for part in parts),
        "parts": [_convert_part(part) for part in parts],
        "read": {
            "path": source.path,
            "format": source.format,
            "era": source.format_variant,
            "framework": source.framework,
            "step": source.step,
            "rank": source.number,
            "process": source.process,
            "graph": source.graph,
            "ops": _count_ops(trace),
            "tensors": len(trace.tensors),
            "whole_tensors": _count_whole_tensors(trace),
            "resolution": source.resolution,
            "low_precision_statistics": source.low_precision_statistics,
            "details": dict(source.details),
            "problems": [convert_problem(problem) for problem in trace.problems],
        },
    }


@use_chosen_language()
def write(
    path: str | Path,
    parts: Sequence[Part],
    trace: Trace,
    console: Console,
    *,
    verbose: bool = False,
) -> None:
    """Print the dump, one fact per line; the first line is its format."""
    console.print(Text(format_source(trace.source), style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in _list_facts(path, parts, trace):
        table.add_row(name, Text(escape_control(value), overflow="fold"))
    console.print(table)
    _write_items(translate("part"), parts if len(parts) > 1 else (), console, verbose)
    _write_items(translate("problem"), trace.problems, console, verbose)


def _write_items(title: str, items: Sequence[object], console: Console, verbose: bool) -> None:
    printed_items = items if verbose else items[:_SHORT]
    for item in printed_items:
        line = f"{title}{translate(': ')}{escape_control(str(item))}"
        console.print(Text(line), soft_wrap=True)
    n_more = len(items) - len(printed_items)
    if n_more:
        console.print(Text(translate("... {count} more, -v shows them", count=n_more)))


def _convert_part(part: Part) -> dict[str, Any]:
    return {
        "format": part.format,
        "path": str(part.path),
        "step": part.step,
        "rank": part.rank_or_process,
        "process": part.process,
        "graph": part.graph,
        "has_whole_tensors": part.has_whole_tensors,
    }


def _list_facts(path: str | Path, parts: Sequence[Part], trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of everything that is printed as a table."""
    yield translate("path"), str(path)
    size = _measure_size(Path(path))
    yield translate("on disk"), translate("{size:,} bytes", size=size)
    yield translate("steps"), _format_numbers(part.step for part in parts)
    yield translate("ranks"), _format_numbers(part.rank for part in parts)
    if any(part.process is not None for part in parts):
        yield translate("processes"), _format_numbers(part.process for part in parts)
    yield translate("graphs"), _format_numbers(part.graph for part in parts)
    phase_counts = [
        f"{count} {translate(phase)}" for phase, count in _count_ops(trace).items() if count
    ]
    phases = translate(", ").join(phase_counts) or translate("none")
    yield translate("ops"), translate("{count} ({phases})", count=len(trace.ops), phases=phases)
    yield (
        translate("tensors"),
        translate(
            "{count}, {n_whole} of them with a file of their own",
            count=len(trace.tensors),
            n_whole=_count_whole_tensors(trace),
        ),
    )
    for name, value in trace.source.details.items():
        yield translate(name.replace("_", " ")), _format_detail(value)
    n_problems = sum(problem.count for problem in trace.problems)
    yield translate("problems"), str(n_problems)


def _count_ops(trace: Trace) -> dict[str, int]:
    counts = trace.ops["phase"].value_counts()
    return {phase: int(counts.get(phase, 0)) for phase in PHASES}


def _count_whole_tensors(trace: Trace) -> int:
    return int((trace.tensors["file"] != "").sum())


def _list_numbers(numbers: Iterator[int | None]) -> list[int]:
    """Return the distinct numbers in ascending order, without unknown ones."""
    return sorted({number for number in numbers if number is not None})


def _format_numbers(numbers: Iterator[int | None]) -> str:
    return ", ".join(map(str, _list_numbers(numbers))) or translate("unknown")


def _format_detail(value: Any) -> str:
    """Format a detail of a reader: two counts are a number of things and their total."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    is_count = len(value) == 2 and all(isinstance(item, int) for item in value)
    separator = " of " if is_count else ", "
    return separator.join(map(str, value))


def _measure_size(path: Path) -> int:
    """Return the apparent size in bytes of a file, or of all files below a folder.

    Links count as links and are not followed.
    """
    if path.is_file():
        return path.stat().st_size
    size = 0
    for folder, _, names in iterate_folders(path):
        size += sum((folder / name).lstat().st_size for name in names)
    return size
