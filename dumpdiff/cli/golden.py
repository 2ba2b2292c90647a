"""``dumpdiff golden``: parse, call :mod:`dumpdiff.golden`, print."""

from __future__ import annotations

import click

from . import options
from .output import build_console, format_exit_codes, write_files
from .writing_command import OUTPUT_FILE, WritingCommand


@click.group(context_settings=options.CONTEXT)
def golden() -> None:
    """Keep the numbers of a dump in a repository, and check later dumps against them."""


_RECORD_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used

\b
Examples:
  dumpdiff golden record pt_dump/ golden.json
"""


@golden.command(
    cls=WritingCommand, epilog=_RECORD_EPILOG, short_help="Write the numbers of a dump to a file."
)
@click.argument("dump")
@click.argument("output", type=OUTPUT_FILE, metavar="FILE")
@options.step
@options.rank
@options.language
def record(dump: str, output: str, step: int | None, rank: int | None) -> None:
    """Write statistics and checksums of every result of DUMP to FILE.

    FILE is JSON with one value on each line, for a repository.
    """
    import dumpdiff

    from ..reports.golden import text

    reference = dumpdiff.golden.record(dump, output, step=step, rank=rank)
    text.write_record(reference, output, build_console())


_CHECK_EPILOG = f"""\b
{format_exit_codes("agree: every value is as recorded", "differ", "inconclusive")}
\b
Examples:
  dumpdiff golden check pt_dump/ golden.json
  dumpdiff golden check pt_dump/ golden.json --tolerance 1e-6 --junit golden.xml
  dumpdiff golden check pt_dump/ golden.json -q --github -
"""


@golden.command(
    cls=WritingCommand, epilog=_CHECK_EPILOG, short_help="Hold a dump against that file."
)
@click.argument("dump")
@click.argument("reference")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Largest allowed difference of a statistic, relative to the value; 0: bit for bit.",
)
@options.step
@options.rank
@options.json_file
@options.junit_file
@click.option(
    "--github", "github_file", type=OUTPUT_FILE, help="Write annotations of a GitHub workflow."
)
@click.option(
    "--limit",
    type=options.NUMBER,
    default=10,
    show_default=True,
    help="Maximum number of values to print.",
)
@options.quiet
@options.language
@click.pass_context
def check(
    ctx: click.Context,
    dump: str,
    reference: str,
    tolerance: float,
    step: int | None,
    rank: int | None,
    json_file: str | None,
    junit_file: str | None,
    github_file: str | None,
    limit: int,
    quiet: bool,
) -> None:
    """Say which results of DUMP are not those of REFERENCE, a file of 'dumpdiff golden record'.

    Ops and slots belong together by their names: both are of one framework and one model.
    """
    files = {"json": json_file, "junit": junit_file, "github": github_file}

    import dumpdiff

    from ..model.verdict import EXIT_CODES
    from ..reports.golden import text

    result = dumpdiff.golden.check(dump, reference, tolerance=tolerance, step=step, rank=rank)
    text.write(result, build_console(*files.values()), limit=limit, quiet=quiet)
    write_files(result, files, "dumpdiff.reports.golden")
    ctx.exit(EXIT_CODES[result.verdict])
