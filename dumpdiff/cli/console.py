"""The console for people, whose reader may have gone."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class PipeConsole(Console):
    """A console that raises BrokenPipeError, where rich would exit with 1."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error that the command line turns into its exit code."""
        raise BrokenPipeError
