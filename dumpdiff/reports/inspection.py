"""What one dump is, in figures: as plain data and as lines for a person, for ``dumpdiff inspect``.

Everywhere here ``path`` is what was asked about, ``parts`` is all it holds, and ``trace`` is one part, read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..model.formatting import printable
from ..model.trace import PHASES, Trace
from ..readers.parts import Part
from .alignment.summary import format_source

#: As for results: major breaks readers of the old form, minor adds.
#: History:
#:   1.0  first published form
#:   1.1  process, of a part and of what was read; rank is its number as before
SCHEMA_VERSION = "1.1"

_FEW = 3  #: problems and parts that are listed without -v


def to_json(path: str | Path, parts: Sequence[Part], trace: Trace) -> dict[str, Any]:
    """The dump as plain data; ``bytes`` is the apparent size of all its files, ``read`` is about ``trace`` alone."""
    source = trace.source
    return {
        "schema_version": SCHEMA_VERSION,
        "path": str(path),
        "bytes": _bytes_on_disk(Path(path)),
        "steps": _values(parts, "step"),
        "ranks": _values(parts, "number"),
        "graphs": _values(parts, "graph"),
        "parts": [
            {**vars(part), "path": str(part.path), "rank": part.rank_or_process} for part in parts
        ],
        "read": {
            "path": source.path,
            "format": source.format,
            "era": source.era,
            "framework": source.framework,
            "step": source.step,
            "rank": source.number,
            "process": source.process,
            "graph": source.graph,
            "ops": _ops(trace),
            "tensors": len(trace.tensors),
            "whole_tensors": _whole(trace),
            "resolution": source.resolution,
            "low_precision_statistics": source.low_precision_statistics,
            "details": dict(source.details),
            "problems": [vars(problem) for problem in trace.problems],
        },
    }


def write(
    path: str | Path,
    parts: Sequence[Part],
    trace: Trace,
    console: Console,
    *,
    verbose: bool = False,
) -> None:
    """Print the dump, one fact a line; the first says what kind of dump it is."""
    console.print(Text(format_source(trace.source), style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(path, parts, trace):
        table.add_row(name, Text(printable(value), overflow="fold"))
    console.print(table)
    for title, items in (("part", parts if len(parts) > 1 else ()), ("problem", trace.problems)):
        shown = items if verbose else items[:_FEW]
        for item in shown:
            console.print(Text(f"{title}: {printable(str(item))}"), soft_wrap=True)
        if len(shown) < len(items):
            console.print(Text(f"... {len(items) - len(shown)} more {title}s, -v shows them"))


def _facts(path: str | Path, parts: Sequence[Part], trace: Trace) -> Iterator[tuple[str, str]]:
    yield "path", str(path)
    yield "on disk", f"{_bytes_on_disk(Path(path)):,} bytes"
    for key, name in (
        ("step", "steps"),
        ("rank", "ranks"),
        ("process", "processes"),
        ("graph", "graphs"),
    ):
        numbers = ", ".join(map(str, _values(parts, key)))
        if numbers or key != "process":
            yield name, numbers or "not said"
    phases = ", ".join(f"{count} {phase}" for phase, count in _ops(trace).items() if count)
    yield "ops", f"{len(trace.ops)} ({phases or 'none'})"
    yield "tensors", f"{len(trace.tensors)}, {_whole(trace)} of them with a file of their own"
    yield from (
        (name.replace("_", " "), _said(value)) for name, value in trace.source.details.items()
    )
    yield "problems", str(sum(problem.count for problem in trace.problems))


def _ops(trace: Trace) -> dict[str, int]:
    counts = trace.ops["phase"].value_counts()
    return {phase: int(counts.get(phase, 0)) for phase in PHASES}


def _whole(trace: Trace) -> int:
    return int((trace.tensors["file"] != "").sum())


def _values(parts: Sequence[Part], key: str) -> list[int]:
    return sorted({value for part in parts if (value := getattr(part, key)) is not None})


def _said(value: Any) -> str:
    """A detail of a reader in words: two counts are a part and its whole."""
    if isinstance(value, (list, tuple)):
        counts = len(value) == 2 and all(isinstance(item, int) for item in value)
        return (" of " if counts else ", ").join(map(str, value))
    return str(value)


def _bytes_on_disk(path: Path) -> int:
    """Apparent size of the file, or of all files below the folder; links are counted as links, not followed."""
    if path.is_file():
        return path.stat().st_size
    below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in below)
