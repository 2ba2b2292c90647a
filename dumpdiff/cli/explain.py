"""``dumpdiff explain RESULT``: parse, call :func:`dumpdiff.explain`, print one finding."""

from __future__ import annotations

import click

from ..model.gc_pause import pause_gc
from ..model.verdict import EXIT_CODES
from . import options, output
from .writing_command import WritingCommand

_EPILOG = """\b
Exit codes:
  0  a hypothesis explains the finding, or both runs agree and there is none
  2  wrong usage, or input or output that cannot be used
  3  no hypothesis explains it, or too little could be compared to find one

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ -o result/
  dumpdiff explain result/
  dumpdiff explain result/ --finding 4 --json why.json
  dumpdiff explain result/ --finding 3f9a1c20 --target /mnt/ms_dump

The two dumps are read again.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("result")
@click.option(
    "--finding",
    default="1",
    show_default=True,
    metavar="RANK|ID",
    help="Number or id of the finding.",
)
@options.moved_target
@options.moved_reference
@options.more_rules
@options.json_file
@options.language
@click.pass_context
@pause_gc(is_last=True)
def explain(
    ctx: click.Context,
    result: str,
    finding: str,
    target: str | None,
    reference: str | None,
    rules: tuple[str, ...],
    json_file: str | None,
) -> None:
    """Say which side is wrong at a finding, and why.

    RESULT is the folder that 'dumpdiff align -o' wrote, or the file of 'dumpdiff align --json'.
    Hypotheses (another epsilon, a missing bias, a shifted mask, ...) are tried on the whole tensors
    around the finding; those that leave only noise are listed, best first.
    """
    import dumpdiff

    from ..model.errors import NoFindingsError
    from ..reports.alignment.json import explanation_to_json
    from ..reports.alignment.text import write_finding
    from ..reports.formats.json import write_document

    try:
        with output.show_progress() as progress:
            explained = dumpdiff.explain(
                result, finding, target=target, reference=reference, rules=rules, progress=progress
            )
    except NoFindingsError as error:
        click.echo(str(error))
        ctx.exit(EXIT_CODES["aligned" if error.verdict == "aligned" else "inconclusive"])
    write_finding(explained, output.build_console(json_file))
    if json_file is not None:
        with output.open_output(json_file) as stream:
            write_document(explanation_to_json(explained), stream)
    ctx.exit(0 if explained.causes else 3)
