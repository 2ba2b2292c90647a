"""``dumpdiff verify DUMP``: parse, call :func:`dumpdiff.verify`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="nothing in the dump contradicts anything else in it",
        differ="records are damaged or lost, or contradict each other or their files",
        inconclusive="nothing was found, but the dump has no whole tensors to recompute",
    )
}
\b
Examples:
  dumpdiff verify ms_dump/
  dumpdiff verify pt_dump/ --step 1 --rank 0 --limit 50
  dumpdiff verify pt_dump/ -q
  dumpdiff verify ms_dump/ --json - -q | jq .contradictions
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("dump")
@options.step
@options.rank
@options.graph
@options.json_file
@click.option(
    "--limit",
    type=options.NUMBER,
    default=10,
    show_default=True,
    help="Maximum number of contradictions to print.",
)
@options.quiet
@options.language
@click.pass_context
def verify(
    ctx: click.Context,
    dump: str,
    step: int | None,
    rank: int | None,
    graph: int | None,
    json_file: str | None,
    limit: int,
    quiet: bool,
) -> None:
    """Check whether a dump contradicts itself.

    DUMP is of any format that docs/formats.md lists. Every file is read once.
    Recorded statistics, shapes and dtypes are held against the files, the values that ops read
    against those that were written, outputs against what their operators compute from the recorded
    inputs, and the records against each other.
    """
    import dumpdiff

    from ..reports import verification

    with output.show_progress() as progress:
        result = dumpdiff.verify(dump, step=step, rank=rank, graph=graph, progress=progress)
    console = output.build_console(json_file)
    verification.write(result, console, limit=limit, quiet=quiet)
    output.finish(ctx, result.verdict, json_file, lambda: verification.to_json(result))
