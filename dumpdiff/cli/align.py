"""``dumpdiff align TARGET REFERENCE``: parse, call :func:`dumpdiff.align`, print."""

from __future__ import annotations

import click

from ..model.defaults import MIN_COVERAGE
from ..model.gc_pause import pause_gc
from ..model.verdict import EXIT_CODES
from . import options
from .output import (
    build_console,
    print_result,
    show_progress,
    write_result_files,
)
from .writing_command import OUTPUT_FILE, OUTPUT_FOLDER, WritingCommand

_EPILOG = """\b
Exit codes:
  0  aligned: everything that was compared agrees
  1  diverged: at least one finding
  2  wrong usage, or input or output that cannot be used
  3  inconclusive: too little could be compared (--min-coverage)
 70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 closed pipe

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/
  dumpdiff align ms_dump/ pt_dump/ -o result/
  dumpdiff align ms_dump/ pt_dump/ --html report.html
  dumpdiff align ms_dump/ pt_dump/ --step 1 --json result.json --csv pairs.csv
  dumpdiff align tp8_dump/ tp8_reference/ --ranks 0-3 --steps 0,2 -j 4 -o result/
  dumpdiff align dump/step0/rank0 dump/step0/rank1
  dumpdiff align ms_dump/ pt_dump/ -q --markdown comment.md --junit dumpdiff.xml
  dumpdiff align ms_statistics/ pt_statistics/ --narrowed next -o next_result
  dumpdiff align npu_dump/ gpu_dump/ --baseline second_gpu_dump/
  dumpdiff align ms_dump/ pt_dump/ --phase forward --scope 'layers.1.*' -v
  dumpdiff align ms_dump/ pt_dump/ --json - -q | jq .first_divergence
  dumpdiff align ms_dump/ pt_dump/ -o result/ --json - --brief -q

--limit, --phase, --scope, -q and -v filter what is printed; files and the exit code are always
complete.
Color is used on a terminal only, and nowhere if the variable NO_COLOR is set.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target")
@click.argument("reference")
@click.option(
    "--steps",
    type=options.NUMBERS,
    metavar="LIST",
    help="Training steps, such as 0,2 or 0-3.  [default: all of both dumps]",
)
@click.option(
    "--ranks",
    type=options.NUMBERS,
    metavar="LIST",
    help="Devices, such as 0-7.  [default: all of both dumps]",
)
@click.option("--step", type=options.NUMBER, help="A single training step.")
@click.option("--rank", type=options.NUMBER, help="A single device or process.")
@click.option(
    "--graph", type=options.NUMBER, help="Compiled graph of a MindSpore dump.  [default: the first]"
)
@click.option(
    "--baseline",
    metavar="DUMP",
    help="Second run of the reference: differences between these two runs are allowed.",
)
@options.rules
@click.option(
    "--weights-target",
    metavar="CHECKPOINT",
    help="Checkpoint of the target: names its parameters by their values.",
)
@click.option("--weights-reference", metavar="CHECKPOINT", help="Checkpoint of the reference.")
@click.option(
    "-o",
    "--output",
    type=OUTPUT_FOLDER,
    help="Write the complete result: JSON, pairs, report, and data for later reports.",
)
@options.json_file
@options.brief
@click.option(
    "--csv",
    "csv_file",
    type=OUTPUT_FILE,
    help="Write one row per pair; - for standard output.",
)
@click.option(
    "--html",
    "html_file",
    type=OUTPUT_FILE,
    help="Write a report with drawings, one file.",
)
@click.option(
    "-j",
    "--jobs",
    type=options.COUNT,
    help="Processes that compare ranks and steps.  [default: one for each core]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Compare ranks and steps on a Dask cluster: tcp://host:8786.",
)
@options.markdown_file
@options.junit_file
@click.option(
    "--limit",
    type=options.NUMBER,
    default=10,
    show_default=True,
    help="Maximum number of findings, and with -v of values and ops not compared, to print.",
)
@click.option(
    "--phase",
    type=click.Choice(["forward", "backward", "optimizer", "communication"]),
    help="Print only findings of this phase.",
)
@click.option(
    "--scope", metavar="GLOB", help="Print only findings of modules such as 'layers.1.*'."
)
@click.option(
    "--min-coverage",
    type=click.FloatRange(0, 1),
    default=MIN_COVERAGE,
    show_default=True,
    help="Minimum share of compared or reconverged ops for the verdict 'aligned'.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read every file of both dumps and check it, not only the files that are compared.",
)
@click.option(
    "--narrowed",
    metavar="NEXT",
    multiple=True,
    help="Folder of 'dumpdiff narrow' whose dumps complete these two; may be repeated.",
)
@options.language
@options.quiet
@click.option(
    "-v", "--verbose", is_flag=True, help="Also print evidence, learned equivalences, all problems."
)
@click.pass_context
@pause_gc(is_last=True)
def align(
    ctx: click.Context,
    target: str,
    reference: str,
    step: int | None,
    rank: int | None,
    graph: int | None,
    steps: tuple[int, ...] | None,
    ranks: tuple[int, ...] | None,
    jobs: int | None,
    scheduler: str | None,
    baseline: str | None,
    rules: tuple[str, ...],
    weights_target: str | None,
    weights_reference: str | None,
    output: str | None,
    json_file: str | None,
    brief: bool,
    csv_file: str | None,
    html_file: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    limit: int,
    phase: str | None,
    scope: str | None,
    min_coverage: float,
    verify: bool,
    narrowed: tuple[str, ...],
    quiet: bool,
    verbose: bool,
) -> None:
    """Find where two dumps of one model diverge.

    TARGET is the run under test, REFERENCE the trusted one: dumps of any format that
    docs/formats.md lists, in any combination. Every rank and step that both have is compared; the
    first line of output is the answer.

    If FILE is -, it is written to standard output and the text report to standard error.
    """
    files = {
        "brief" if brief else "json": json_file,
        "csv": csv_file,
        "html": html_file,
        "markdown": markdown_file,
        "junit": junit_file,
    }
    if brief and json_file is None:
        raise click.UsageError("--brief shortens the JSON: give --json FILE, too")
    if step is not None and steps is not None:
        raise click.UsageError("give either --step or --steps")
    if rank is not None and ranks is not None:
        raise click.UsageError("give either --rank or --ranks")

    import dumpdiff

    with show_progress() as progress:
        result = dumpdiff.align(
            target,
            reference,
            step=step,
            rank=rank,
            graph=graph,
            steps=steps,
            ranks=ranks,
            jobs=jobs,
            scheduler=scheduler,
            baseline=baseline,
            rules=rules,
            weights_target=weights_target,
            weights_reference=weights_reference,
            output=output,
            min_coverage=min_coverage,
            verify=verify,
            narrowed=narrowed,
            progress=progress,
        )

    from ..model.run_result import RunResult
    from ..reports.alignment.text import View

    view = View(limit=limit, phase=phase, scope=scope, quiet=quiet, verbose=verbose)
    print_result(result, build_console(*files.values()), view)
    write_result_files(result, files)
    if isinstance(result, RunResult):
        result.close()
    ctx.exit(EXIT_CODES[result.verdict])
