"""A conversion as a person reads it: what came of it in one line, then every tensor beside what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ...model.formatting import printable
from ...weight_comparison.summary import format_headline as headline_of_weights

if TYPE_CHECKING:
    from ...conversion import ConversionResult
    from ...conversion.plan import File

_MOST = 3  #: sources of a tensor that are listed


def format_headline(result: ConversionResult) -> str:
    """What came of it."""
    files = [file for file in result.plan.files if file.tensors]
    size = sum(file.size for file in files)
    tensors = sum(len(file.tensors) for file in files)
    where = "one file" if len(files) == 1 else f"{len(files)} files"
    what = f"{tensors:,} tensors in {where}, {size / 1e6:,.1f} MB, names of {result.plan.target}"
    if result.folder is None:
        return f"would write {what}"
    kept = f" ({result.n_reused_files} files were there)" if result.n_reused_files else ""
    if result.verification is None:
        return f"written, not compared: {what}{kept}"
    said = headline_of_weights(result.verification)
    return f"written: {what}{kept}; {said}" if result.verified else f"written, and wrong: {said}"


def write(result: ConversionResult, console: Console, *, quiet: bool = False) -> None:
    """Print it; the tensors if nothing was written."""
    colour = "bold red" if result.verified is False else "bold green" if result.verified else "bold"
    console.print(Text(printable(format_headline(result)), colour))
    if quiet:
        return
    for note in result.plan.notes:
        console.print(Text(f"note: {printable(note)}"))
    if result.plan.skipped:
        count = len(result.plan.skipped)
        console.print(
            Text(
                f"note: {count} of the source are no weights and are left out ({result.plan.skipped[0]})"
            )
        )
    if result.folder is not None:
        return
    for file in result.plan.files:
        for line in _lines(file):
            console.print(Text(printable(line)), soft_wrap=True)


def _lines(file: File) -> Iterator[str]:
    yield ""
    yield file.name
    for tensor in file.tensors:
        listed = ", ".join(tensor.sources[:_MOST])
        more = f" and {len(tensor.sources) - _MOST} more" if len(tensor.sources) > _MOST else ""
        yield f"  {tensor.name}  {tensor.dtype} {list(tensor.shape)}  <- {listed}{more}"
