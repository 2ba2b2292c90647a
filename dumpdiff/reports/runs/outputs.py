"""The outputs of the result of a run by name; each module has ``write(result, stream)``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import IO, Protocol

from ...model.output_files import open_output_file
from ...model.run_result import RunResult
from ..alignment.outputs import OUTPUTS


class _Output(Protocol):
    def write(self, result: RunResult, stream: IO[bytes]) -> None: ...


def write(result: RunResult, output: str, stream: IO[bytes]) -> None:
    """Write ``result`` as one of ``OUTPUTS``.

    Raises DumpError if a library is missing, KeyError for an unknown output.
    """
    if output not in OUTPUTS:
        raise KeyError(output)
    module: _Output = import_module(f".{output}", __package__)
    module.write(result, stream)


def write_file(result: RunResult, output: str, file: Path) -> None:
    """Write ``result`` as one of ``OUTPUTS`` to a file. Raises DumpError if it cannot."""
    with open_output_file(file) as stream:
        write(result, output, stream)
