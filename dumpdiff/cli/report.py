"""``dumpdiff report RESULT``: read the result of ``dumpdiff align --json``, repeat it, write what was asked for."""

from __future__ import annotations

import click

from ..model.gc_pause import collector_paused
from . import files, output

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ --json result.json
  dumpdiff report result.json -o report.html
  dumpdiff report result.json --markdown - | gh issue comment 7 --body-file -
  dumpdiff report result.json --junit dumpdiff.xml --csv pairs.csv

The two dumps named in the result are read again: they must be where they were.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("result")
@click.option(
    "-o",
    "--html",
    "html_file",
    metavar="FILE",
    help="Write a report with drawings, one file for a browser.",
)
@click.option(
    "--markdown", "markdown_file", metavar="FILE", help="Write it for an issue or a merge request."
)
@click.option(
    "--junit",
    "junit_file",
    metavar="FILE",
    help="Write it for a CI server: findings are failed tests.",
)
@click.option("--csv", "csv_file", metavar="FILE", help="Write one row per pair.")
@click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="Rules beyond those that the result was made with.",
)
@collector_paused()
def report(
    result: str,
    html_file: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    csv_file: str | None,
    rules: tuple[str, ...],
) -> None:
    """Write a result for people.

    RESULT is what 'dumpdiff align --json RESULT' wrote. The comparison is repeated as it was recorded, and its answer
    printed. A FILE of - is standard output, and the answer then goes to standard error.
    """
    written = {"html": html_file, "markdown": markdown_file, "junit": junit_file, "csv": csv_file}
    if not any(written.values()):
        raise click.UsageError("nothing to write: give -o, --markdown, --junit or --csv")
    files.check(written)

    from .. import api
    from ..reports.alignment import text

    with output.progress() as progress:
        again = api.repeat(result, rules=rules, closeups=html_file is not None, progress=progress)
    text.write(again, output.console(*written.values()), text.View(quiet=True))
    files.write(again, written)
