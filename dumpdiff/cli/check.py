"""``dumpdiff check DUMP``: parse, call :func:`dumpdiff.check`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="nothing contradicts what holds in every correct run",
        differ="an invariant does not hold",
        inconclusive="ranks could not be compared with each other",
    )
}
\b
Examples:
  dumpdiff check pt_dump/
  dumpdiff check ms_dump/ --ranks 0-3 --steps 0,1
  dumpdiff check pt_dump/ -q --markdown comment.md --junit check.xml
  dumpdiff check ms_dump/ --json - -q | jq .violations
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("dump")
@click.option(
    "--steps",
    type=options.NUMBERS,
    metavar="LIST",
    help="Training steps, such as 0,2 or 0-3.  [default: all]",
)
@click.option(
    "--ranks", type=options.NUMBERS, metavar="LIST", help="Devices, such as 0-7.  [default: all]"
)
@options.json_file
@options.markdown_file
@options.junit_file
@click.option(
    "--limit",
    type=options.NUMBER,
    default=10,
    show_default=True,
    help="Maximum number of violations to print.",
)
@options.language
@options.quiet
@click.pass_context
def check(
    ctx: click.Context,
    dump: str,
    steps: tuple[int, ...] | None,
    ranks: tuple[int, ...] | None,
    json_file: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    limit: int,
    quiet: bool,
) -> None:
    """Check a run of many ranks without a reference.

    DUMP is a folder of MindSpore, msprobe or ptdbg_ascend with the dumps of all ranks. What every
    correct run obeys is checked: collectives give what follows from what the ranks gave, replicated
    values and parameters are equal, sibling ranks make the same calls, values are finite.
    """
    files = {"json": json_file, "markdown": markdown_file, "junit": junit_file}

    import dumpdiff

    from ..model.verdict import EXIT_CODES
    from ..reports.check import text

    with output.show_progress() as progress:
        result = dumpdiff.check(dump, steps=steps, ranks=ranks, progress=progress)
    text.write(result, output.build_console(*files.values()), limit=limit, quiet=quiet)
    output.write_files(result, files, "dumpdiff.reports.check")
    ctx.exit(EXIT_CODES[result.verdict])
