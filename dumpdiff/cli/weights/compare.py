"""``dumpdiff weights TARGET REFERENCE``: parse, call :func:`dumpdiff.weights.compare`, print."""

from __future__ import annotations

import click

from ...model.verdict import EXIT_CODES
from .. import options
from ..output import build_console, show_progress, write_files, write_text
from ..writing_command import OUTPUT_FILE, WritingCommand

_EPILOG = """\b
Exit codes:
  0  same weights: bit for bit, after one rounding, or within noise
  1  different weights: a parameter is wrong, or missing on one side
  2  wrong usage, or input or output that cannot be used
  3  inconclusive: too little could be paired
 70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 closed pipe

\b
Examples:
  dumpdiff weights megatron_ckpt/ hf_model/
  dumpdiff weights rank_0.ckpt model.safetensors --json result.json
  dumpdiff weights rank_0.ckpt model.safetensors --html weights.html
  dumpdiff weights ms_output/checkpoint/ iter_0001000/ --rules-out names.yaml
  dumpdiff align ms_dump/ pt_dump/ --rules names.yaml
  dumpdiff weights convert --help

JSON, CSV and the exit code are always complete; -q and -v filter what is printed.

More: docs/weights.md
"""


@click.command(
    cls=WritingCommand,
    epilog=_EPILOG,
    context_settings=options.CONTEXT,
    options_metavar="[OPTIONS]",
)
@click.argument("target")
@click.argument("reference")
@options.rules
@click.option(
    "--rules-out",
    type=OUTPUT_FILE,
    help="Write new rules for unknown names; pass them to --rules.",
)
@options.json_file
@click.option(
    "--csv",
    "csv_file",
    type=OUTPUT_FILE,
    help="Write one row per parameter; - for standard output.",
)
@click.option(
    "--html",
    "html_file",
    type=OUTPUT_FILE,
    help="Write a report of every parameter, one file.",
)
@options.language
@options.quiet
@click.option("-v", "--verbose", is_flag=True, help="Print every parameter, not only wrong ones.")
@click.pass_context
def compare(
    ctx: click.Context,
    target: str,
    reference: str,
    rules: tuple[str, ...],
    rules_out: str | None,
    json_file: str | None,
    csv_file: str | None,
    html_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Say whether two checkpoints hold the same weights, and if not, what is wrong.

    TARGET is the one under test, REFERENCE the trusted one: safetensors, MindSpore .ckpt, torch .pt
    or .bin, NumPy files, or a folder of Hugging Face, MindSpore (also rank_N) or Megatron-LM, in
    any combination. Shards are joined; fused, stacked, transposed and renamed parameters are
    compared with their counterparts.

    If FILE is -, it is written to standard output and the text report to standard error.
    """
    files = {"json": json_file, "csv": csv_file, "html": html_file}

    import dumpdiff

    from ...reports.weights import text

    with show_progress() as progress:
        result = dumpdiff.weights.compare(target, reference, rules=rules, progress=progress)
    text.write(result, build_console(*files.values(), rules_out), quiet=quiet, verbose=verbose)
    write_files(result, files, "dumpdiff.reports.weights")
    if rules_out is not None:
        from ...reports.weights.rules import to_text

        write_text(rules_out, to_text(result, rules))
    ctx.exit(EXIT_CODES[result.verdict])
