"""What the reports of all stages share: the headline, and the head of the JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from ... import __version__
from ...model.formatting import escape_control
from ...model.stage import Stage
from ..formats.blocks import Block, write_blocks, write_sides

#: Of the JSON of every stage. Major: programs that read the old form fail. Minor: something was
#: added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"

COLORS = {"agree": "bold green", "differ": "bold red", "inconclusive": "bold yellow"}


def write_stage(
    stage: Stage,
    sides: tuple[str, str] | None,
    blocks: Iterable[Block],
    console: Console,
    *,
    quiet: bool = False,
) -> None:
    """Print a stage: its headline, then, unless ``quiet``, both sides and the blocks."""
    write_headline(stage, console)
    if quiet:
        return
    if sides is not None:
        write_sides(console, *sides)
    write_blocks(console, blocks)


def write_headline(stage: Stage, console: Console) -> None:
    """Print the first line: the name of the stage, the verdict, and its reason."""
    line = f"{stage.name} {stage.verdict}: {stage.headline}"
    console.print(Text(escape_control(line), style=COLORS[stage.verdict]), soft_wrap=True)


def build_document(stage: Stage, **fields: Any) -> dict[str, Any]:
    """Return the JSON of a stage: what all stages have, then its own ``fields``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        **asdict(stage),
        **fields,
    }
