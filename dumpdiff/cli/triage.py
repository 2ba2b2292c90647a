"""``dumpdiff triage CASE``: read the case, look at all of it, say where the mismatch comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..model.errors import DumpError
from . import files, output

if TYPE_CHECKING:
    from ..diagnosis.case import Case

#: Of a decision's outcome: the cause, where one is found.
EXIT_CODES = {
    "agree": 0,
    "differ": 1,
    "unclear": 3,
    "settings": 11,
    "data": 12,
    "weights": 13,
    "forward": 14,
    "backward": 15,
    "optimizer": 16,
    "schedule": 17,
    "precision": 18,
    "long run": 19,
}

_EPILOG = """\b
Exit codes:
   0  no cause found, and all that was looked at agrees
   1  the runs differ; what was given does not tell where that comes from
   2  wrong usage, or a case that cannot be used
   3  cannot tell: too little was given, or too little could be read
  11  settings      12  data         13  weights
  14  forward pass  15  backward pass
  16  optimizer     17  learning rate
  18  precision     19  a later step of a long run
  70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 the reader of a pipe went away

\b
Examples:
  dumpdiff triage --init run_mindspore/ run_megatron/ -o case.yaml
  dumpdiff triage case.yaml --html triage.html
  dumpdiff triage case.yaml --json - --junit triage.xml
  dumpdiff triage run_mindspore/ run_megatron/
  dumpdiff triage -t log=msrun_log/ -r log=megatron.log -t dump=ms_dump/ -r dump=pt_dump/

Keys of -t and -r are those of a case: settings, model_config, version, data, log, norms, weights, steps, dump.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("given", nargs=-1, metavar="[CASE | TARGET REFERENCE]")
@click.option(
    "--init",
    is_flag=True,
    help="Write a case file of what is found in two folders, and look at nothing.",
)
@click.option(
    "-o",
    "--output",
    "case_file",
    metavar="FILE",
    default="-",
    help="Where --init writes; - is the default.",
)
@click.option(
    "-t", "--target", metavar="KEY=VALUE", multiple=True, help="Something of the run under test."
)
@click.option(
    "-r", "--reference", metavar="KEY=VALUE", multiple=True, help="Something of the trusted run."
)
@click.option(
    "--min-steps", type=click.IntRange(min=1), help="Steps that agreement of the logs needs (1000)."
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write everything; - for standard output."
)
@click.option("--html", "html_file", metavar="FILE", help="Write a page that joins all stages.")
@click.option(
    "--markdown",
    "markdown_file",
    metavar="FILE",
    help="Write a comment for an issue or merge request.",
)
@click.option("--junit", "junit_file", metavar="FILE", help="Write JUnit XML: a test per stage.")
@click.option("-q", "--quiet", is_flag=True, help="Print the first line, the conclusion, alone.")
@click.option("-v", "--verbose", is_flag=True, help="Print what each stage rests on.")
@click.pass_context
def triage(
    ctx: click.Context,
    given: tuple[str, ...],
    init: bool,
    case_file: str,
    target: tuple[str, ...],
    reference: tuple[str, ...],
    min_steps: int | None,
    json_file: str | None,
    html_file: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Say where a mismatch of two training runs comes from, from all there is of them.

    CASE is a YAML file that names what there is of TARGET, the run under test, and of REFERENCE, the trusted one; two
    folders are searched for it. Settings, data, logs, local norms, checkpoints, dumps and optimizer steps are compared
    in the order of the precision guide; what is missing is skipped, and said to be.
    """
    if init:
        _write_case(given, case_file)
        return
    forms = {"json": json_file, "html": html_file, "markdown": markdown_file, "junit": junit_file}
    files.check(forms)
    case = _case(given, target, reference, min_steps)

    from .. import api

    with output.progress() as progress:
        found = api.triage(case, progress=progress)

    from ..reports.triage import text

    text.write(found, output.console(*forms.values()), quiet=quiet, verbose=verbose)
    files.write(found, forms, "dumpdiff.reports.triage")
    ctx.exit(EXIT_CODES[found.decision.outcome])


def _case(
    given: tuple[str, ...],
    target: tuple[str, ...],
    reference: tuple[str, ...],
    min_steps: int | None,
) -> Case:
    """What the command line names: a case file, two folders, or the parts one by one."""
    from dataclasses import replace

    from ..diagnosis.case import Case, load_case, run_of
    from ..diagnosis.discovery import discover

    options = target or reference
    if len(given) > 2 or (options and given) or not (options or given):
        raise click.UsageError(
            "give a case file, or two folders, or parts with --target and --reference"
        )
    if options:
        case = Case(run_of(_pairs(target)), run_of(_pairs(reference)))
    else:
        case = load_case(given[0]) if len(given) == 1 else discover(*given)
    return case if min_steps is None else replace(case, min_steps=min_steps)


def _pairs(options: tuple[str, ...]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    for key, equals, value in pairs:
        if not equals or not value:
            raise click.UsageError(f"'{key}' has no value; write it as in log=train.log")
    if len({key for key, _, _ in pairs}) < len(pairs):
        raise click.UsageError("a key can be given once for each run")
    return {key: value for key, _, value in pairs}


def _write_case(given: tuple[str, ...], case_file: str) -> None:
    from ..diagnosis.discovery import discover, written

    if len(given) != 2:
        raise click.UsageError("--init takes two folders, one per run")
    if case_file != "-" and Path(case_file).exists():
        raise DumpError(f"{case_file}: is there already; remove it, or write elsewhere with -o")
    output.check_writable(case_file)
    folder = Path.cwd() if case_file == "-" else Path(case_file).parent
    content = written(discover(*given), folder)
    with output.writing(case_file) as stream:
        stream.write(content.encode())
