"""``dumpdiff align TARGET REFERENCE``: parse, call :func:`dumpdiff.align`, print."""

from __future__ import annotations

import click

from ..model.defaults import MIN_COVERAGE
from ..model.gc_pause import collector_paused
from . import files, output

EXIT_CODES = {"aligned": 0, "diverged": 1, "inconclusive": 3}

_EPILOG = """\b
Exit codes:
  0  aligned: everything that was compared agrees
  1  diverged: at least one finding
  2  wrong usage, or input or output that cannot be used
  3  inconclusive: too little could be compared (--min-coverage)
 70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 the reader of a pipe went away

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/
  dumpdiff align ms_dump/ pt_dump/ --html report.html
  dumpdiff align ms_dump/ pt_dump/ --step 1 --json result.json --csv pairs.csv
  dumpdiff align ms_dump/ pt_dump/ -q --markdown comment.md --junit dumpdiff.xml
  dumpdiff align npu_dump/ gpu_dump/ --baseline second_gpu_dump/
  dumpdiff align ms_dump/ pt_dump/ --phase forward --scope 'layers.1.*' -v
  dumpdiff align ms_dump/ pt_dump/ --json - -q | jq .first_divergence

--limit, --phase, --scope, -q and -v choose what is printed; files and the exit code always tell everything.
Colour is used on a terminal only, and nowhere if the variable NO_COLOR is set.
"""

_NUMBER = click.IntRange(min=0)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("reference")
@click.option(
    "--step", type=_NUMBER, help="Training step; default: the first that both dumps have."
)
@click.option(
    "--rank", type=_NUMBER, help="Device, or process; default: the first that both dumps have."
)
@click.option(
    "--graph", type=_NUMBER, help="Compiled graph of a MindSpore dump; default: the first."
)
@click.option(
    "--baseline",
    metavar="DUMP",
    help="A second run of REFERENCE; what the two differ by is allowed to TARGET.",
)
@click.option(
    "--rules",
    metavar="FILE",
    multiple=True,
    help="YAML rules or msprobe mappings to add; repeatable.",
)
@click.option(
    "--weights-target",
    metavar="CHECKPOINT",
    help="Weights of TARGET: they name parameters by their values.",
)
@click.option("--weights-reference", metavar="CHECKPOINT", help="Weights of REFERENCE, likewise.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Write the result; - for standard output."
)
@click.option(
    "--csv", "csv_file", metavar="FILE", help="Write one row per pair; - for standard output."
)
@click.option(
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
@click.option(
    "--limit", type=_NUMBER, default=10, show_default=True, help="Print at most so many findings."
)
@click.option(
    "--phase",
    type=click.Choice(["forward", "backward", "optimizer", "communication"]),
    help="Print only findings of this phase.",
)
@click.option(
    "--scope", metavar="GLOB", help="Print only findings of these modules, such as 'layers.1.*'."
)
@click.option(
    "--min-coverage",
    type=click.FloatRange(0, 1),
    default=MIN_COVERAGE,
    show_default=True,
    help="Share of each side's forward and backward ops that 'aligned' needs compared (or leading to what was).",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line, the verdict, alone.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print evidence, learned equivalences, every problem too."
)
@click.pass_context
@collector_paused()
def align(
    ctx: click.Context,
    target: str,
    reference: str,
    step: int | None,
    rank: int | None,
    graph: int | None,
    baseline: str | None,
    rules: tuple[str, ...],
    weights_target: str | None,
    weights_reference: str | None,
    json_file: str | None,
    csv_file: str | None,
    html_file: str | None,
    markdown_file: str | None,
    junit_file: str | None,
    limit: int,
    phase: str | None,
    scope: str | None,
    min_coverage: float,
    quiet: bool,
    verbose: bool,
) -> None:
    """Find where two dumps of one model part.

    TARGET is the run under test, REFERENCE the trusted one: folders or files, of MindSpore, msprobe or ptdbg_ascend,
    in any combination. The first line of output is the answer.

    A FILE of - writes to standard output, and the report for people to standard error.
    """
    written = {
        "json": json_file,
        "csv": csv_file,
        "html": html_file,
        "markdown": markdown_file,
        "junit": junit_file,
    }
    files.check(written)

    from .. import api

    with output.progress() as progress:
        result = api.align(
            target,
            reference,
            step=step,
            rank=rank,
            graph=graph,
            baseline=baseline,
            rules=rules,
            weights_target=weights_target,
            weights_reference=weights_reference,
            min_coverage=min_coverage,
            closeups=html_file is not None,
            progress=progress,
        )

    from ..reports.alignment import text

    view = text.View(limit=limit, phase=phase, scope=scope, quiet=quiet, verbose=verbose)
    text.write(result, output.console(*written.values()), view)
    files.write(result, written)
    ctx.exit(EXIT_CODES[result.verdict])
