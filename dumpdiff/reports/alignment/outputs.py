"""The outputs of a result by name; each is a module here with ``write(result, stream)``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import IO, Final, Protocol

from ...model.errors import DumpError
from ...model.output_files import open_output_file
from ...model.result import Result

OUTPUTS: Final = ("json", "csv", "html", "markdown", "junit")


class _Output(Protocol):
    def write(self, result: Result, stream: IO[bytes]) -> None: ...


def is_available(output: str) -> bool:
    """Return whether the libraries that an output needs are installed."""
    if output != "html":
        return True
    from ..page.assets import check_installed  # takes 20 ms, for the metadata of packages

    try:
        check_installed()
    except DumpError:
        return False
    return True


def write(result: Result, output: str, stream: IO[bytes]) -> None:
    """Write ``result`` as one of :data:`OUTPUTS`.

    Raises DumpError if a library is missing, KeyError for an unknown output.
    """
    if output not in OUTPUTS:
        raise KeyError(output)
    module: _Output = import_module(f".{output}", __package__)
    module.write(result, stream)


def write_file(result: Result, output: str, file: Path) -> None:
    """Write ``result`` as one of :data:`OUTPUTS` to a file. Raises DumpError if it cannot."""
    with open_output_file(file) as stream:
        write(result, output, stream)
