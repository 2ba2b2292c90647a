"""What one dump is, in figures: the document and the lines that ``dumpdiff inspect`` prints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..readers.parts import Part
from ..trace import PHASES, Trace
from .words import described, printable

#: As for results: major breaks readers of the old form, minor adds.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"


def inspection(path: str | Path, parts: Sequence[Part], trace: Trace) -> dict[str, Any]:
    """The dump at ``path`` as plain data: what its ``parts`` are, its bytes, and one part, ``trace``, in figures."""
    source, phases, tensors = trace.source, trace.ops["phase"], trace.tensors
    return {
        "schema_version": SCHEMA_VERSION,
        "path": str(path),
        "bytes": _bytes_on_disk(Path(path)),
        "steps": _values(parts, "step"),
        "ranks": _values(parts, "rank"),
        "graphs": _values(parts, "graph"),
        "parts": len(parts),
        "read": {
            "path": source.path,
            "format": source.format,
            "era": source.era,
            "framework": source.framework,
            "step": source.step,
            "rank": source.rank,
            "graph": source.graph,
            "ops": {phase: int((phases == phase).sum()) for phase in PHASES},
            "tensors": len(tensors),
            "whole_tensors": int((tensors["file"] != "").sum()),
            "resolution": source.resolution,
            "low_precision_statistics": source.low_precision_statistics,
            "details": dict(source.details),
            "problems": [
                {"file": p.file, "line": p.line, "message": p.message, "count": p.count} for p in trace.problems
            ],
        },
    }


def write(document: Mapping[str, Any], trace: Trace, console: Console, *, verbose: bool = False) -> None:
    """Print what :func:`inspection` made of ``trace``, one fact a line; the first says what kind of dump it is."""
    console.print(Text(described(trace.source), style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(document):
        table.add_row(name, Text(printable(value), overflow="fold"))
    console.print(table)
    few = trace.problems if verbose else trace.problems[:3]
    for problem in few:
        console.print(Text(f"problem: {printable(str(problem))}"), soft_wrap=True)
    if len(few) < len(trace.problems):
        console.print(Text(f"... {len(trace.problems) - len(few)} more problems, -v shows them"))


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    read = document["read"]
    yield "path", document["path"]
    yield "on disk", f"{document['bytes']:,} bytes"
    for name in ("steps", "ranks", "graphs"):
        yield name, ", ".join(map(str, document[name])) or "not said"
    if document["parts"] > 1:
        yield "read", f"1 of {document['parts']} parts: {read['path']}"
    ops = ", ".join(f"{count} {phase}" for phase, count in read["ops"].items() if count)
    yield "ops", f"{sum(read['ops'].values())}" + (f" ({ops})" if ops else "")
    yield "tensors", f"{read['tensors']}, {read['whole_tensors']} of them with a file of their own"
    yield from ((name.replace("_", " "), _said(value)) for name, value in read["details"].items())
    yield "problems", str(sum(problem["count"] for problem in read["problems"]))


def _said(value: Any) -> str:
    """A detail of a reader in words: two counts are a part and its whole."""
    if isinstance(value, (list, tuple)):
        counts = len(value) == 2 and all(isinstance(item, int) for item in value)
        return (" of " if counts else ", ").join(map(str, value))
    return str(value)


def _values(parts: Sequence[Part], key: str) -> list[int]:
    return sorted({value for part in parts if (value := getattr(part, key)) is not None})


def _bytes_on_disk(path: Path) -> int:
    """Apparent size of the file, or of all files below the folder; links are not followed out of it."""
    if path.is_file():
        return path.stat().st_size
    below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in below)
