"""``dumpdiff dump-config msprobe``: parse, call :func:`dumpdiff.dump_config.msprobe`, write."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..output import write_text
from ..writing_command import OUTPUT_FILE, WritingCommand

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, what msprobe would refuse or ignore, or a file that cannot be written

\b
Examples:
  dumpdiff dump-config msprobe --framework pytorch -o config.json
  dumpdiff dump-config msprobe --framework pytorch --task tensor --step 5-8 \\
      --list Functional.softmax -o config.json
  dumpdiff dump-config msprobe --framework mindspore --script mindformers -o config.json
  dumpdiff dump-config msprobe --framework pytorch --msprobe-version 8.3 \\
      --tensor-list layers.1. -o config.json
  dumpdiff dump-config msprobe --framework pytorch --task tensor --step 0-9 \\
      --like pt_statistics/ -o config.json

With -o the lines for the training script are printed; without it only the configuration is.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.option(
    "--framework",
    type=click.Choice(["pytorch", "mindspore"]),
    required=True,
    help="Framework of the run.",
)
@click.option(
    "--msprobe-version", default="26.2", show_default=True, help="Version of mindstudio-probe."
)
@click.option(
    "--script",
    type=click.Choice(["plain", "megatron", "mindformers"]),
    default="plain",
    show_default=True,
    help="Kind of training script that the lines are for.",
)
@click.option("--path", metavar="FOLDER", help="Folder of the dump.  [./dump]")
@click.option(
    "--task",
    type=click.Choice(["statistics", "tensor"]),
    default="statistics",
    show_default=True,
    help="Statistics, or whole tensors.",
)
@click.option(
    "--level",
    type=click.Choice(["L0", "L1", "mix", "L2"]),
    default="mix",
    show_default=True,
    help="Modules, APIs, both, or kernels.",
)
@click.option(
    "--step",
    multiple=True,
    default=["0"],
    metavar="STEP",
    help="0 or 5-8, may be repeated; all: every step.  [0]",
)
@click.option("--rank", multiple=True, metavar="RANK", help="0 or 4-7, may be repeated.  [all]")
@click.option(
    "--list",
    multiple=True,
    metavar="NAME",
    help="Only calls whose names contain this; may be repeated.",
)
@click.option(
    "--scope",
    nargs=2,
    metavar="FIRST LAST",
    help="Only calls between these two, by full names.",
)
@click.option(
    "--data-mode",
    multiple=True,
    type=click.Choice(["all", "forward", "backward", "input", "output"]),
    default=["all"],
    show_default="all",
    help="Tensors of a call.",
)
@click.option(
    "--summary-mode",
    type=click.Choice(["statistics", "md5", "xor"]),
    default="statistics",
    show_default=True,
    help="Numbers, or checksums: md5 of the host, xor of the device.",
)
@click.option(
    "--tensor-list",
    multiple=True,
    metavar="NAME",
    help="Whole tensors of these, with the statistics of everything.",
)
@click.option(
    "--precision", type=click.Choice(["low", "high"]), help="Precision of the statistics."
)
@click.option(
    "--risk-level",
    type=click.Choice(["CORE", "FOCUS", "ALL"]),
    help="PyTorch APIs that are recorded.",
)
@click.option(
    "--async", "async_dump", is_flag=True, help="Write at the end of the step, from memory."
)
@click.option(
    "--clean", is_flag=True, help="Remove the dump that an earlier run left in the folder."
)
@click.option(
    "--like", metavar="DUMP", help="Print what the dump will cost, if the run is like this one."
)
@click.option(
    "-o",
    "--output",
    type=OUTPUT_FILE,
    default="-",
    help="File to write.  [standard output]",
)
@click.pass_context
def msprobe(ctx: click.Context, /, output: str, **choices: Any) -> None:
    """Write msprobe's config.json and print the lines that the training script needs."""
    import dumpdiff

    config = dumpdiff.dump_config.msprobe(**choices, output=output)
    write_text(output, config.text)
    if output != "-":
        click.echo(config.script, nl=False)
    if config.warning:
        click.echo(f"warning: {config.warning}", err=True)
    if config.cost is not None:
        click.echo(config.cost, err=True)
