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
  dumpdiff narrow result/ -o next --finding 2 --max-size 2GB
  dumpdiff narrow result/ --until-cause > loop.sh
  sh loop.sh 'python train_ms.py' 'python train_pt.py $DUMP_CONFIG'

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
    "--max-size",
    "max_bytes",
    type=options.SIZE,
    metavar="SIZE",
    help="Maximum size of whole tensors per side, such as 2GB.  [default: 3 % of everything]",
)
@click.option(
    "--ops",
    type=options.COUNT,
    help="Maximum ops per side.  [default: what explaining the finding needs]",
)
@click.option(
    "--until-cause",
    is_flag=True,
    help="Print a shell script of up to three rounds that stops at a cause; write nothing.",
)
@options.moved_target
@options.moved_reference
@options.more_rules
@pause_gc(is_last=True)
def narrow(
    result: str,
    output: str,
    finding: str | None,
    max_bytes: int | None,
    ops: int | None,
    until_cause: bool,
    target: str | None,
    reference: str | None,
    rules: tuple[str, ...],
) -> None:
    """Write the next dump's configurations: whole tensors of the few ops that explain a finding.

    RESULT is the folder that 'dumpdiff align -o' wrote, or the file of 'dumpdiff align --json',
    usually of a statistics dump. The commands to run are printed with what the dumps will cost. The
    first dumps stay where they are: the next ones complete them.
    """
    import dumpdiff

    from ..api.next_dump import build_narrow_loop
    from ..reports import next_dump

    if until_cause:
        if finding is not None:
            raise click.UsageError("--until-cause follows the first findings; leave out --finding")
        loop = build_narrow_loop(
            result,
            output,
            max_bytes=max_bytes,
            ops=ops,
            target=target,
            reference=reference,
            rules=rules,
        )
        click.echo(loop, nl=False)
        return
    with show_progress() as progress:
        plan = dumpdiff.narrow(
            result,
            output,
            finding=finding,
            max_bytes=max_bytes,
            ops=ops,
            target=target,
            reference=reference,
            rules=rules,
            progress=progress,
        )
    click.echo(next_dump.to_text(plan), nl=False)
