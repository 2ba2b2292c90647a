"""``dumpdiff triage CASE``: parse, call :func:`dumpdiff.triage`, print the conclusion."""

from __future__ import annotations

from pathlib import Path

import click

from ..model.output_files import check_output_files, check_output_folder
from ..model.verdict import OUTCOME_EXIT_CODES
from . import options
from .output import (
    build_console,
    show_progress,
    write_files,
    write_text,
)
from .writing_command import OUTPUT_FILE, OUTPUT_FOLDER, WritingCommand

_EPILOG = """\b
Exit codes:
   0  no cause found, and no place is left to look at
   1  the runs differ, but the inputs do not show where that comes from
   2  wrong usage, or a case that cannot be used
   3  inconclusive: no cause found, but places are left; the output lists them
  11-19: first cause found in
  11  settings      12  data         13  weights
  14  forward pass  15  backward pass
  16  optimizer     17  learning rate
  18  precision     19  a later step of a long run
  70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 closed pipe

\b
Examples:
  dumpdiff triage --init run_mindspore/ run_megatron/ -o case.yaml
  dumpdiff triage case.yaml --html triage.html
  dumpdiff triage case.yaml --pages triage/ --redact
  dumpdiff triage case.yaml --json - --junit triage.xml
  dumpdiff triage run_mindspore/ run_megatron/
  dumpdiff triage -t log=msrun_log/ -r log=megatron.log -t dump=ms_dump/ -r dump=pt_dump/

Keys of -t and -r are those of a case: settings, model_config, version, data, log, norms, weights,
steps, dump.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("inputs", nargs=-1, metavar="[CASE | TARGET REFERENCE]")
@click.option(
    "--init", is_flag=True, help="Write a case file of what two folders hold, and stop there."
)
@click.option(
    "-o",
    "--output",
    "case_file",
    type=OUTPUT_FILE,
    help="File that --init writes.  [standard output]",
)
@click.option(
    "-t", "--target", metavar="KEY=VALUE", multiple=True, help="Input of the run under test."
)
@click.option(
    "-r", "--reference", metavar="KEY=VALUE", multiple=True, help="Input of the trusted run."
)
@click.option(
    "--min-steps",
    type=options.COUNT,
    help="Number of common steps that agreement of the logs needs.  [1000]",
)
@options.json_file
@click.option("--html", "html_file", type=OUTPUT_FILE, help="Write one page of all stages.")
@click.option(
    "--pages",
    type=OUTPUT_FOLDER,
    help="Write that page and a page of each stage into a folder, with links.",
)
@options.markdown_file
@click.option(
    "--junit",
    "junit_file",
    type=OUTPUT_FILE,
    help="Write JUnit XML: a test per stage.",
)
@click.option(
    "--redact", is_flag=True, help="Shorten paths, and hide the names of users and of this host."
)
@options.language
@options.quiet
@click.option("-v", "--verbose", is_flag=True, help="Also print the evidence of each stage.")
@click.pass_context
def triage(
    ctx: click.Context,
    inputs: tuple[str, ...],
    init: bool,
    case_file: str | None,
    target: tuple[str, ...],
    reference: tuple[str, ...],
    min_steps: int | None,
    json_file: str | None,
    html_file: str | None,
    pages: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    redact: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Find where a mismatch of two training runs comes from, from everything available.

    CASE is a YAML file that names the inputs of TARGET, the run under test, and of REFERENCE, the
    trusted one; two folders are searched for inputs. Settings, data, logs, local norms,
    checkpoints, dumps and optimizer steps are compared in the order of the precision guide of
    MindSpore Transformers; missing inputs are skipped and reported.
    """
    if init:
        _write_case(inputs, case_file or "-")
        return
    files = {"json": json_file, "html": html_file, "markdown": markdown_file, "junit": junit_file}
    has_keys = bool(target or reference)
    if has_keys == bool(inputs) or len(inputs) > 2:
        raise click.UsageError(
            "give a case file, or two folders, or inputs with --target and --reference"
        )

    import dumpdiff

    from ..reports.triage import text

    if len(inputs) == 1:
        outputs = [file for file in files.values() if file is not None and file != "-"]
        _check_outputs(inputs[0], outputs, pages)
    with show_progress() as progress:
        conclusion = dumpdiff.triage(
            *inputs,
            target=_parse_pairs(target),
            reference=_parse_pairs(reference),
            min_steps=min_steps,
            pages=pages,
            redact=redact,
            progress=progress,
        )
    text.write(conclusion, build_console(*files.values()), quiet=quiet, verbose=verbose)
    write_files(conclusion, files, "dumpdiff.reports.triage")
    ctx.exit(OUTCOME_EXIT_CODES[conclusion.decision.outcome])


def _check_outputs(case_file: str, files: list[str], pages: str | None) -> None:
    """Raise DumpError if an output is an input that the case names, or lies inside one."""
    from ..diagnosis.case import load_case

    paths = load_case(case_file).list_paths()
    if pages is not None:
        check_output_folder(pages, paths)
    check_output_files(files, paths, force=True)  # what exists was checked with the command line


def _parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Turn 'log=train.log' into a key and a value. Raises click.UsageError."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise click.UsageError(f"'{key}' has no value; write it as in log=train.log")
        if key in values:
            raise click.UsageError("a key can be given once for each run")
        values[key] = value
    return values


def _write_case(inputs: tuple[str, ...], case_file: str) -> None:
    if len(inputs) != 2:
        raise click.UsageError("--init takes two folders, one per run")

    import dumpdiff

    from ..diagnosis.discovery import format_case

    folder = Path.cwd() if case_file == "-" else Path(case_file).parent
    write_text(case_file, format_case(dumpdiff.find_case(*inputs), folder))
