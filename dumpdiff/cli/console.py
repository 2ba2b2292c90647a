"""The console for people, whose reader may have gone."""

from __future__ import annotations

import re
from typing import IO, Any, NoReturn

from rich.console import Console


class PipeConsole(Console):
    """A console that raises BrokenPipeError, where rich would exit with 1."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error that the command line turns into its exit code."""
        raise BrokenPipeError


class UnpaddedStream:
    """A stream that drops the blanks at the end of lines, which fill the columns of a table."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines."""
        return self._stream.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        """Return everything else of the stream."""
        return getattr(self._stream, name)
