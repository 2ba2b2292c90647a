"""``dumpdiff narrow RESULT``: what to dump next, as two configurations and the commands that use them."""

from __future__ import annotations

from pathlib import Path

import click

from ..model.gc_pause import collector_paused
from . import output

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used, or no finding to look at

\b
Examples:
  dumpdiff align ms_statistics/ pt_statistics/ --json result.json
  dumpdiff narrow result.json -o next
  dumpdiff narrow result.json -o next --finding 2 --ops 40

The two dumps named in the result are read again. docs/tutorial.md has the whole way.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("result")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="FOLDER",
    default="next",
    show_default=True,
    help="Made if absent.",
)
@click.option(
    "--finding",
    type=click.IntRange(min=1),
    help="Around this one; default: around the first three.",
)
@click.option(
    "--ops",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="At most so many a side.",
)
@click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="Rules beyond those that the result was made with.",
)
@collector_paused()
def narrow(result: str, folder: str, finding: int | None, ops: int, rules: tuple[str, ...]) -> None:
    """Say what to dump next: whole tensors of the few ops around a finding, on both sides.

    RESULT is what 'dumpdiff align --json RESULT' wrote, from statistics for example. Configurations are written to
    FOLDER, the commands printed with what the dumps will cost.
    """
    from .. import api
    from ..reports.next_dump import text

    with output.progress() as progress:
        narrowed = api.narrow(
            result, folder, finding=finding, count=ops, rules=rules, progress=progress
        )
    Path(folder).mkdir(parents=True, exist_ok=True)
    for side in (narrowed.target, narrowed.reference):
        if side.file:
            with output.writing(str(Path(folder) / side.file)) as stream:
                stream.write(side.text.encode())
    click.echo(text.text(narrowed), nl=False)
