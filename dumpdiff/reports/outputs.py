"""The outputs of a result by name, of one rank and step or of a whole run.

Each is a module of ``reports.alignment``, or of ``reports.runs``, with ``write(result, stream)``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, Protocol

from ..model.output_files import open_output_file
from ..model.result import Result
from ..model.run_result import RunResult

OUTPUTS: Final = ("json", "brief", "csv", "html", "markdown", "junit")


class _Output(Protocol):
    def write(self, result: Any, stream: IO[bytes]) -> None: ...


def write(result: Result | RunResult, output: str, stream: IO[bytes]) -> None:
    """Write ``result`` as one of :data:`OUTPUTS`.

    Raises KeyError for an unknown output.
    """
    if output not in OUTPUTS:
        raise KeyError(output)
    package = "runs" if isinstance(result, RunResult) else "alignment"
    module: _Output = import_module(f".{package}.{output}", __package__)
    module.write(result, stream)


def write_file(result: Result | RunResult, output: str, file: Path) -> None:
    """Write ``result`` as one of :data:`OUTPUTS` to a file. Raises DumpError if it cannot."""
    with open_output_file(file) as stream:
        write(result, output, stream)
