"""A golden check in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...golden_reference import GoldenCheck, GoldenReference
from ...model.formatting import escape_control
from ..formats.blocks import translate_block, write_blocks
from ..language import translate, use_chosen_language
from ..stages.stage import write_headline
from .blocks import build_blocks, build_stage


@use_chosen_language()
def write_record(reference: GoldenReference, file: str, console: Console) -> None:
    """Print how many values were written to ``file``."""
    answer = translate(
        "golden: {count} values recorded in {file}", count=len(reference.values), file=file
    )
    console.print(Text(escape_control(answer)), soft_wrap=True)


@use_chosen_language()
def write(check: GoldenCheck, console: Console, *, limit: int = 10, quiet: bool = False) -> None:
    """Print the answer, then, unless ``quiet``, the values that are not as recorded."""
    write_headline(build_stage(check), console, quiet=quiet)
    if not quiet:
        write_blocks(console, map(translate_block, build_blocks(check, limit)))
