"""A conversion in a terminal: the outcome in one line, then every tensor with its sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ...model.formatting import escape_control
from ...weight_comparison import summary

if TYPE_CHECKING:
    from ...conversion import ConversionResult
    from ...conversion.plan import File

_MAX_SOURCES = 3  #: sources of a tensor that are listed


def format_headline(result: ConversionResult) -> str:
    """Return the outcome in one line."""
    size = _format_output(result)
    if result.folder is None:
        return f"would write {size}"
    if result.n_reused_files:
        size += f" ({result.n_reused_files} files were there)"
    if result.verification is None:
        return f"written, not compared: {size}"
    answer = summary.format_headline(result.verification)
    return f"written: {size}; {answer}" if result.verified else f"written, and wrong: {answer}"


def _format_output(result: ConversionResult) -> str:
    files = [file for file in result.plan.files if file.tensors]
    n_tensors = sum(len(file.tensors) for file in files)
    n_files = f"{len(files)} files"
    if len(files) == 1:
        n_files = "one file"
    megabytes = sum(file.size for file in files) / 1e6
    size = f"{megabytes:,.1f} MB"
    return f"{n_tensors:,} tensors in {n_files}, {size}, names of {result.plan.target}"


def write(result: ConversionResult, console: Console, *, quiet: bool = False) -> None:
    """Print the outcome; also the tensors if nothing was written."""
    styles = {None: "bold", True: "bold green", False: "bold red"}
    console.print(Text(escape_control(format_headline(result)), styles[result.verified]))
    if quiet:
        return
    for note in result.plan.notes:
        console.print(Text(f"note: {escape_control(note)}"))
    skipped = result.plan.skipped
    if skipped:
        message = f"{len(skipped)} entries of the source are not weights and are skipped"
        console.print(Text(f"note: {message} ({skipped[0]})"))
    if result.folder is not None:
        return
    for file in result.plan.files:
        for line in _list_lines(file):
            console.print(Text(escape_control(line)), soft_wrap=True)


def _list_lines(file: File) -> Iterator[str]:
    yield ""
    yield file.name
    for tensor in file.tensors:
        sources = ", ".join(tensor.sources[:_MAX_SOURCES])
        n_more = len(tensor.sources) - _MAX_SOURCES
        if n_more > 0:
            sources += f" and {n_more} more"
        yield f"  {tensor.name}  {tensor.dtype} {list(tensor.shape)}  <- {sources}"
