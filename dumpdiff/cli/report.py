"""``dumpdiff report RESULT``: parse, call :func:`dumpdiff.report`, print the answer."""

from __future__ import annotations

import click

from ..model.gc_pause import pause_gc
from . import options
from .output import build_console, print_result, show_progress, write_result_files
from .writing_command import OUTPUT_FILE, WritingCommand

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, or input or output that cannot be used

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ -o result/
  dumpdiff report result/ -o report.html
  dumpdiff report result/ --markdown - | gh issue comment 7 --body-file -
  dumpdiff report result/ --junit dumpdiff.xml --csv pairs.csv
  dumpdiff report result/ --redact -o for_the_vendor.html

A folder of 'align -o' is complete: the dumps are not needed. For a file of 'align --json', or with
further --rules, the comparison is repeated on the dumps.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("result")
@click.option(
    "-o",
    "--html",
    "html_file",
    type=OUTPUT_FILE,
    help="Write a report with drawings, one file.",
)
@options.markdown_file
@options.junit_file
@click.option("--csv", "csv_file", type=OUTPUT_FILE, help="Write one row per pair.")
@click.option(
    "--redact", is_flag=True, help="Shorten paths, and hide the names of users and of this host."
)
@options.moved_target
@options.moved_reference
@options.more_rules
@options.language
@pause_gc(is_last=True)
def report(
    result: str,
    html_file: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    csv_file: str | None,
    redact: bool,
    target: str | None,
    reference: str | None,
    rules: tuple[str, ...],
) -> None:
    """Write reports of a result: HTML, Markdown, JUnit, CSV.

    RESULT is the folder that 'dumpdiff align -o' wrote, or the file of 'dumpdiff align --json'. The
    answer is printed. If FILE is -, it is written to standard output and the answer to standard
    error.
    """
    files = {"html": html_file, "markdown": markdown_file, "junit": junit_file, "csv": csv_file}
    if not any(files.values()):
        raise click.UsageError("nothing to write: give -o, --markdown, --junit or --csv")

    import dumpdiff

    from ..reports.alignment.text import View

    with show_progress() as progress:
        loaded = dumpdiff.report(
            result,
            redact=redact,
            target=target,
            reference=reference,
            rules=rules,
            progress=progress,
        )
    print_result(loaded, build_console(*files.values()), View(quiet=True))
    write_result_files(loaded, files)
