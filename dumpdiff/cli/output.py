"""Where output goes: files, '-' for standard output, the terminal for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ..model.errors import DumpError

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of text that goes to a file or a pipe: a dump's long names fit, and nothing is wrapped at 80.
WIDE = 160


def check_writable(*files: str | None) -> None:
    """Raise before the long work what would only fail after it: a missing folder, a folder in place of a file.

    Raises click.UsageError when two formats would go to the same place.
    """
    given = [file for file in files if file is not None]
    if len(set(given)) < len(given):
        raise click.UsageError(f"two formats cannot both be written to {given[0]}")
    for file in given:
        if file == "-":
            continue
        if Path(file).is_dir():
            raise DumpError(f"{file}: is a folder; give the name of a file to write")
        if not Path(file).parent.is_dir():
            raise DumpError(f"{file}: cannot be written, there is no folder {Path(file).parent}")


@contextmanager
def writing(file: str) -> Iterator[IO[bytes]]:
    """A file to write bytes to, '-' for standard output. Raises DumpError that names it if that fails half-way."""
    try:
        with click.open_file(file, "wb") as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DumpError(f"{file}: cannot be written ({error.strerror})") from error


def console(*files: str | None) -> Console:
    """Where people read: standard output, or standard error if one of ``files`` is '-'.

    Colour only on a terminal, and not there if NO_COLOR is set. Characters that the stream cannot show are escaped.
    """
    import os
    import sys

    from rich.console import Console

    stream = sys.stderr if "-" in files else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    wide = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(file=stream, width=wide, highlight=False, markup=False, emoji=False)


@contextmanager
def progress() -> Iterator[Callable[[str, float], None] | None]:
    """A bar on standard error while the body runs, moved by ``callback(stage, share in 0..1)``; None if no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield None
        return
    with Progress(console=terminal, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def move(stage: str, share: float) -> None:
            bar.update(task, description=stage, completed=share)

        yield move
