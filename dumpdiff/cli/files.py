"""What was found into files: one form each, the same for every command that writes several."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import IO, Any, Protocol

from . import output

Files = Mapping[
    str, str | None
]  #: name of a module -> the file to write, None if it was not asked for


class _Form(Protocol):
    def write(self, found: Any, stream: IO[bytes]) -> None: ...


def check(files: Files) -> None:
    """Raise before the long work what would only fail after it: a missing folder, two forms in one place, a library.

    Raises DumpError, and click.UsageError when two forms would go to the same place.
    """
    output.check_writable(*files.values())
    if files.get("html") is not None:
        from ..reports.alignment.html import check_installed

        check_installed()


def write(found: object, files: Files, home: str = "dumpdiff.reports.alignment") -> None:
    """Write every form that was asked for, each by the module of its name in the package ``home``.

    Raises DumpError that names the file if that fails half-way.
    """
    for name, file in files.items():
        if file is not None:
            form: _Form = import_module(f"{home}.{name}")
            with output.writing(file) as stream:
                form.write(found, stream)
