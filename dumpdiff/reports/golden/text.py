"""A golden check in a terminal."""

from __future__ import annotations

from rich.console import Console

from ...golden_reference import GoldenCheck
from ..formats.blocks import write_blocks
from ..stages.stage import write_headline
from .blocks import build_blocks, build_stage


def write(check: GoldenCheck, console: Console, *, limit: int = 10, quiet: bool = False) -> None:
    """Print the answer, then, unless ``quiet``, the values that are not as recorded."""
    write_headline(build_stage(check), console)
    if not quiet:
        write_blocks(console, build_blocks(check, limit))
