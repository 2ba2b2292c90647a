"""``dumpdiff narrow RESULT``: parse, call :func:`dumpdiff.narrow`, print commands."""

from __future__ import annotations

import click

from ..model.gc_pause import pause_gc
from . import options
from .output import show_progress
from .writing_command import OUTPUT_FOLDER, WritingCommand

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used, or no finding

\b
Examples:
  dumpdiff align ms_statistics/ pt_statistics/ -o result/
  dumpdiff narrow result/ -o next
  dumpdiff narrow result/ -o next --finding 2 --ops 40

The two dumps are read again. docs/tutorial.md shows the whole procedure.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("result")
@click.option(
    "-o",
    "--output",
    type=OUTPUT_FOLDER,
    default="next",
    show_default=True,
    help="Folder for the configurations, made if absent.",
)
@click.option(
    "--finding",
    metavar="RANK|ID",
    help="Number or id of the finding.  [default: the first three]",
)
@click.option(
    "--ops", type=options.COUNT, default=20, show_default=True, help="Maximum ops per side."
)
@options.moved_target
@options.moved_reference
@options.more_rules
@pause_gc()
def narrow(
    result: str,
    output: str,
    finding: str | None,
    ops: int,
    target: str | None,
    reference: str | None,
    rules: tuple[str, ...],
) -> None:
    """Write the next dump's configurations: whole tensors of the few ops around a finding.

    RESULT is the folder that 'dumpdiff align -o' wrote, or the file of 'dumpdiff align --json',
    usually of a statistics dump. The commands to run are printed with what the dumps will cost.
    """
    import dumpdiff

    from ..reports import next_dump

    with show_progress() as progress:
        plan = dumpdiff.narrow(
            result,
            output,
            finding=finding,
            ops=ops,
            target=target,
            reference=reference,
            rules=rules,
            progress=progress,
        )
    click.echo(next_dump.to_text(plan), nl=False)
