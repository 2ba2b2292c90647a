"""``dumpdiff weights TARGET REFERENCE``: parse, call :func:`dumpdiff.api.weights`, print."""

from __future__ import annotations

import click

from .. import files, output

EXIT_CODES = {"same": 0, "differ": 1, "inconclusive": 3}

_EPILOG = """\b
Exit codes:
  0  same weights: bit for bit, after one rounding, or within noise
  1  different weights: a parameter is wrong, or missing on one side
  2  wrong usage, or input or output that cannot be used
  3  inconclusive: too little could be paired
 70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 the reader of a pipe went away

\b
Examples:
  dumpdiff weights megatron_ckpt/ hf_model/
  dumpdiff weights rank_0.ckpt model.safetensors --json result.json
  dumpdiff weights rank_0.ckpt model.safetensors --html weights.html
  dumpdiff weights ms_output/checkpoint/ iter_0001000/ --rules-out names.yaml
  dumpdiff align ms_dump/ pt_dump/ --rules names.yaml
  dumpdiff weights convert --help

JSON, CSV and the exit code always tell everything; -q and -v choose what is printed.
"""


@click.command(
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@click.argument("target")
@click.argument("reference")
@click.option(
    "--rules", metavar="FILE", multiple=True, help="YAML rules to add or override; may be repeated."
)
@click.option(
    "--rules-out",
    metavar="FILE",
    help="Write what the rules did not know of the names as rules for --rules.",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write the result; - for standard output."
)
@click.option(
    "--csv", "csv_file", metavar="FILE", help="Write one row per parameter; - for standard output."
)
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    help="Write a report of every parameter, one file for a browser.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line, the verdict, alone.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print every parameter, not only what is wrong."
)
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
    """Say whether two checkpoints hold the same weights, and if not, what went wrong with which.

    TARGET is the one under test, REFERENCE the trusted one: safetensors, MindSpore .ckpt, torch .pt or .bin, NumPy
    files, or a folder of Hugging Face, MindSpore (also rank_N) or Megatron-LM, in any combination. Shards are put
    together; fused, stacked, transposed and renamed parameters are compared with what holds the same.

    A FILE of - writes to standard output, and the report for people to standard error.
    """
    files.check({"json": json_file, "csv": csv_file, "html": html_file, "rules": rules_out})

    from ... import api

    with output.progress() as progress:
        result = api.weights(target, reference, rules=rules, progress=progress)

    from ...reports.weights import csv, json, text
    from ...reports.weights.rules import rules_of

    console = output.console(json_file, csv_file, html_file, rules_out)
    text.write(result, console, quiet=quiet, verbose=verbose)
    for file, form in ((json_file, json), (csv_file, csv)):
        if file is not None:
            with output.writing(file) as stream:
                form.write(result, stream)
    if html_file is not None:
        from ...reports.weights import html

        with output.writing(html_file) as stream:
            html.write(result, stream)
    if rules_out is not None:
        with output.writing(rules_out) as stream:
            stream.write(rules_of(result, rules).encode())
    ctx.exit(EXIT_CODES[result.verdict])
