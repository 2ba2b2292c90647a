"""Output: files, '-' for standard output, the terminal for people."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import click

from ..model.errors import DumpError
from ..model.output_files import open_output_file
from ..model.verdict import EXIT_CODES

if TYPE_CHECKING:
    from rich.console import Console

    from ..model.result import Result
    from ..model.run_result import RunResult
    from ..reports.alignment.text import View

#: Columns of text that goes to a file or a pipe: long names of a dump fit, and nothing is wrapped
#: at 80.
WIDE = 160

#: Name of a module in a package of reports -> the file to write, None if it was not requested.
Files = Mapping[str, str | None]


class _Writer(Protocol):
    def write(self, result: Any, stream: IO[bytes]) -> None: ...


def write_files(result: object, files: Files, package: str) -> None:
    """Write every requested output, each by the module of its name in ``package``.

    Raises DumpError that names the file if that fails.
    """
    for module_name, file in files.items():
        if file is not None:
            writer: _Writer = import_module(f"{package}.{module_name}")
            with open_output(file) as stream:
                writer.write(result, stream)


def write_result_files(result: Result | RunResult, files: Files) -> None:
    """Write every requested output of a comparison of two dumps.

    Raises DumpError that names the file if that fails.
    """
    for output, file in files.items():
        if file is not None:
            with open_output(file) as stream:
                result.write(output, stream)


def print_result(result: Result | RunResult, console: Console, view: View) -> None:
    """Print the report of a comparison of two dumps, of one task or of many."""
    from ..model.result import Result
    from ..reports.alignment import text
    from ..reports.runs import text as run_text

    if isinstance(result, Result):
        text.write(result, console, view)
    else:
        run_text.write(result, console, view)


@contextmanager
def open_output(file: str) -> Iterator[IO[bytes]]:
    """Open a file to write bytes to; '-' is standard output, which gets all of it or nothing.

    Raises DumpError that names the file if writing fails.
    """
    if file != "-":
        with open_output_file(file) as stream:
            yield stream
        return
    content = io.BytesIO()
    yield content
    try:
        with click.open_file(file, "wb") as stream:
            stream.write(content.getbuffer())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DumpError(f"standard output: cannot be written ({error.strerror})") from error


def write_text(file: str, text: str) -> None:
    """Write text to a file; '-' is standard output.

    Raises DumpError that names the file if writing fails.
    """
    with open_output(file) as stream:
        stream.write(text.encode())


def build_console(*files: str | None) -> Console:
    """Return the console for people: standard output, or standard error if one of ``files`` is '-'.

    Colored only on a terminal, and not there if NO_COLOR is set. Characters that the stream cannot
    show are escaped. In a file or a pipe, lines have no blanks at their end.
    """
    import os
    import sys

    from .console import PipeConsole, UnpaddedStream

    stream: IO[str] = sys.stderr if "-" in files else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    has_own_width = stream.isatty() or "COLUMNS" in os.environ
    width = None if has_own_width else WIDE
    if not stream.isatty():
        stream = cast(IO[str], UnpaddedStream(stream))
    return PipeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def show_progress() -> Iterator[Callable[[str, float], None] | None]:
    """Show a bar on standard error while the body runs; the value moves it.

    The value is None if standard error is no terminal.
    """
    from rich.console import Console
    from rich.progress import Progress

    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield None
        return
    with Progress(console=terminal, transient=True) as bar:
        task = bar.add_task("", total=None)

        def move(activity: str, share: float) -> None:
            # What has no share yet may take long, so the bar moves to show that it is at work.
            bar.update(task, description=activity, completed=share, total=1.0 if share else None)

        yield move


def format_exit_codes(agree: str, differ: str, inconclusive: str) -> str:
    """Return the part of a command's help that lists its exit codes."""
    return f"""\b
Exit codes:
  0  {agree}
  1  {differ}
  2  wrong usage, or input or output that cannot be used
  3  {inconclusive}
"""


def finish(
    ctx: click.Context, verdict: str, json_file: str | None, document: Callable[[], Any]
) -> None:
    """Write the JSON if it was requested, and exit with the verdict's code."""
    if json_file is not None:
        from ..reports.formats.json import write_document

        with open_output(json_file) as stream:
            write_document(document(), stream)
    ctx.exit(EXIT_CODES[verdict])
