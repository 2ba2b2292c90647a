"""``dumpdiff explain RESULT``: read the result of ``dumpdiff align --json``, call the library, print one finding."""

from __future__ import annotations

import click

from ..model.gc_pause import collector_paused
from . import output

_EPILOG = """\b
Exit codes:
  0  a hypothesis explains the finding
  2  wrong usage, or input or output that cannot be used
  3  no hypothesis explains it

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ --json result.json
  dumpdiff explain result.json
  dumpdiff explain result.json --finding 4 --json why.json

The two dumps named in the result are read again: they must be where they were.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("result")
@click.option(
    "--finding",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of the finding.",
)
@click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="Rules beyond those that the result was made with.",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write the finding; - for standard output."
)
@click.pass_context
@collector_paused()
def explain(
    ctx: click.Context, result: str, finding: int, rules: tuple[str, ...], json_file: str | None
) -> None:
    """Say which side departs at a finding, and why.

    RESULT is what 'dumpdiff align --json RESULT' wrote. Hypotheses (another epsilon, a missing bias, a mask moved, ...)
    are tried on the whole tensors around the finding; those that leave nothing but noise are told, best first.
    """
    output.check_writable(json_file)

    from .. import api
    from ..reports.alignment import json, text

    with output.progress() as progress:
        found = api.explain(result, finding, rules=rules, progress=progress)
    text.write_finding(found, output.console(json_file))
    if json_file is not None:
        with output.writing(json_file) as stream:
            json.write_document(json.finding_document(found), stream)
    ctx.exit(0 if found.causes else 3)
