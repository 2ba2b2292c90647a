"""``dumpdiff dump-config mindspore``: parse, call :func:`dumpdiff.dump_config.mindspore`, write."""

from __future__ import annotations

import shlex
from typing import Any

import click

from .. import options
from ..output import write_text
from ..writing_command import OUTPUT_FILE, WritingCommand
from .target import add_target_options

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, broken rules of MindSpore (each is printed), or a file that cannot be written

\b
Examples:
  dumpdiff dump-config mindspore --saved-data statistic --stat max,min,avg,l2norm -o dump.json
  dumpdiff dump-config mindspore --backend cpu --iteration '0|5-8' --path /data/dump -o dump.json
  dumpdiff dump-config mindspore --kernels Default/fc-Dense/MatMul-op0 \\
      --kernels 'name-regex(.*/layers.*MatMul-op.*)'
  eval "$(dumpdiff env dump.json)"

Every field and rule: docs/dump-config.md
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@add_target_options
@click.option(
    "--path",
    metavar="FOLDER",
    help="Folder of the dump; '' leaves it to MS_DIAGNOSTIC_DATA_PATH.  [./dump]",
)
@click.option(
    "--net-name", default="Net", show_default=True, help="Folder of the network in the dump."
)
@click.option("--iteration", default="0", show_default=True, help="Steps: 0, 5-8, '0|5-8' or all.")
@click.option(
    "--saved-data",
    type=click.Choice(["tensor", "statistic", "full"]),
    default="tensor",
    show_default=True,
    help="Whole tensors, statistics, or both.",
)
@click.option(
    "--input-output",
    type=click.Choice(["both", "input", "output"]),
    default="both",
    show_default=True,
    help="Tensors of an operator.",
)
@click.option(
    "--kernels", multiple=True, metavar="NAME", help="Only these operators; may be repeated."
)
@click.option("--set-dump", is_flag=True, help="Only cells that the script marks with set_dump.")
@click.option("--device", default="0-7", show_default=True, help="Devices: 0, 0,3 or 0-7.")
@click.option(
    "--stat", metavar="NAMES", help="Statistics, separated by commas.  [max,min,avg,l2norm]"
)
@click.option(
    "--stat-on", type=click.Choice(["host", "device"]), help="Where statistics are computed."
)
@click.option(
    "--stat-precision",
    type=click.Choice(["high", "low"]),
    help="Precision of statistics on the device.",
)
@click.option(
    "--op-debug-mode",
    type=options.NUMBER,
    default=0,
    show_default=True,
    help="3: operators that overflow; 4: the one that raised.",
)
@click.option(
    "--overflow-number", type=options.NUMBER, help="Stop after this many operators that overflow."
)
@click.option("--initial-iteration", type=options.NUMBER, help="Number of the first step.")
@click.option(
    "--sample-num",
    type=options.NUMBER,
    help="Number of elements saved from the head and from the tail of a tensor.",
)
@click.option("--save-kernel-args", is_flag=True, help="Save the attributes of operators.")
@click.option(
    "--clean", is_flag=True, help="Remove the dump that an earlier run left in the folder."
)
@click.option(
    "--like", metavar="DUMP", help="Print what the dump will cost, if the run is like this one."
)
@click.option(
    "-o",
    "--output",
    "output_file",
    type=OUTPUT_FILE,
    default="-",
    help="File to write.  [standard output]",
)
@click.pass_context
def mindspore(
    ctx: click.Context, /, backend: str, ms_version: str, output_file: str, **choices: Any
) -> None:
    """Write the file that MINDSPORE_DUMP_CONFIG names.

    It holds everything that the version and the backend need, and is checked before it is written.
    """
    import dumpdiff

    from ...api.dump_config import ConfigurationError, parse_target

    try:
        config = dumpdiff.dump_config.mindspore(
            backend=backend,
            ms_version=ms_version,
            output="dump.json" if output_file == "-" else output_file,
            **choices,
        )
    except ConfigurationError as error:
        click.echo("\n".join(map(str, error.violations)), err=True)
        ctx.exit(2)
    write_text(output_file, config.text)
    if output_file != "-":
        click.echo(
            f"{output_file}: valid for {parse_target(backend, ms_version)}; "
            f'before the training starts: eval "$(dumpdiff env {shlex.quote(output_file)})"'
        )
    if config.warning:
        click.echo(f"warning: {config.warning}", err=True)
    if config.cost is not None:
        click.echo(config.cost, err=True)
