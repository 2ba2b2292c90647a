"""The check of a run in a terminal."""

from __future__ import annotations

from rich.console import Console

from ...invariants import RunCheck
from ..formats.blocks import write_blocks
from ..language import use_chosen_language
from ..stages.stage import write_headline
from .blocks import build_blocks


@use_chosen_language()
def write(check: RunCheck, console: Console, *, limit: int = 10, quiet: bool = False) -> None:
    """Print the answer, then, unless ``quiet``, the violations and what was checked."""
    write_headline(check.to_stage(), console, quiet=quiet)
    if not quiet:
        write_blocks(console, build_blocks(check, limit))
