"""A result into files: one form each, the same for every command that has a result."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import IO, TYPE_CHECKING, Protocol

from . import output

if TYPE_CHECKING:
    from ..result import Result

Files = Mapping[str, str | None]  #: name of a module in report -> the file to write, None if it was not asked for


class _Form(Protocol):
    def write(self, result: Result, stream: IO[bytes]) -> None: ...


def check(files: Files) -> None:
    """Raise before the long work what would only fail after it: a missing folder, two forms in one place, a library.

    Raises DumpError, and click.UsageError when two forms would go to the same place.
    """
    output.check_writable(*files.values())
    if files.get("html") is not None:
        from ..report.html import check_installed

        check_installed()


def write(result: Result, files: Files) -> None:
    """Write every form that was asked for. Raises DumpError that names the file if that fails half-way."""
    for name, file in files.items():
        if file is not None:
            form: _Form = import_module(f"dumpdiff.report.{name}")
            with output.writing(file) as stream:
                form.write(result, stream)
