"""``dumpdiff dump-config mindspore``: options -> configuration, checked, written."""

from __future__ import annotations

import os
import shlex

import click

from ...model.errors import DumpError
from .. import output
from .target import target, target_options

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, rules of MindSpore that would be broken (each is told), or a file that cannot be written

\b
Examples:
  dumpdiff dump-config mindspore --saved-data statistic --stat max,min,avg,l2norm -o dump.json
  dumpdiff dump-config mindspore --backend cpu --iteration '0|5-8' --path /data/dump -o dump.json
  dumpdiff dump-config mindspore --kernels Default/fc-Dense/MatMul-op0 --kernels 'name-regex(.*/layers.*MatMul-op.*)'
  eval "$(dumpdiff env dump.json)"

Every field and rule: docs/dump-config.md
"""

_NUMBER = click.IntRange(min=0)
_INPUT_OUTPUT = ("both", "input", "output")


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@target_options
@click.option(
    "--path",
    metavar="FOLDER",
    help="Where the dump goes; '' leaves it to MS_DIAGNOSTIC_DATA_PATH.  [./dump]",
)
@click.option("--net-name", default="Net", show_default=True, help="Folder of the net in the dump.")
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
    type=click.Choice(_INPUT_OUTPUT),
    default="both",
    show_default=True,
    help="Tensors of an operator.",
)
@click.option(
    "--kernels", multiple=True, metavar="NAME", help="Only these operators; may be repeated."
)
@click.option("--set-dump", is_flag=True, help="Only cells that the script marks with set_dump.")
@click.option(
    "--device", "devices", default="0-7", show_default=True, help="Devices: 0, 0,3 or 0-7."
)
@click.option("--stat", metavar="NAMES", help="Statistics, joined by commas.  [max,min,avg,l2norm]")
@click.option(
    "--stat-on", type=click.Choice(["host", "device"]), help="Where statistics are computed."
)
@click.option(
    "--stat-precision", type=click.Choice(["high", "low"]), help="Of statistics on the device."
)
@click.option(
    "--op-debug-mode",
    type=_NUMBER,
    default=0,
    show_default=True,
    help="3: operators that overflow; 4: the one that raised.",
)
@click.option("--overflow-number", type=_NUMBER, help="Stop after so many operators that overflow.")
@click.option("--initial-iteration", type=_NUMBER, help="Number of the first step.")
@click.option(
    "--sample-num",
    type=_NUMBER,
    help="Save so many elements of the head and of the tail of a tensor.",
)
@click.option("--save-kernel-args", is_flag=True, help="Save attributes of operators.")
@click.option(
    "--like", metavar="DUMP", help="Say what the dump will cost, if the run is like this one."
)
@click.option(
    "-o", "--output", "file", default="-", metavar="FILE", help="Write here; - for standard output."
)
@click.pass_context
def mindspore(
    ctx: click.Context,
    backend: str,
    ms_version: str,
    elsewhere: bool,
    path: str | None,
    net_name: str,
    iteration: str,
    saved_data: str,
    input_output: str,
    kernels: tuple[str, ...],
    set_dump: bool,
    devices: str,
    stat: str | None,
    stat_on: str | None,
    stat_precision: str | None,
    op_debug_mode: int,
    overflow_number: int | None,
    initial_iteration: int | None,
    sample_num: int | None,
    save_kernel_args: bool,
    like: str | None,
    file: str,
) -> None:
    """Write the file that MINDSPORE_DUMP_CONFIG names.

    It holds everything that the version and the backend need, and is checked before it is written.
    """
    output.check_writable(file)

    from ...capture import mindspore as capture

    on = target(backend, ms_version)
    config = capture.configuration(
        capture.Options(
            path=os.path.abspath("dump") if path is None else path,
            net_name=net_name,
            iteration=iteration,
            saved_data=saved_data,
            input_output=_INPUT_OUTPUT.index(input_output),
            kernels=kernels,
            set_dump=set_dump,
            devices=_devices(devices),
            op_debug_mode=op_debug_mode,
            overflow_number=overflow_number,
            initial_iteration=initial_iteration,
            statistic_category=None
            if stat is None
            else tuple(name.strip() for name in stat.split(",")),
            stat_calc_mode=stat_on,
            device_stat_precision_mode=stat_precision,
            sample_num=sample_num,
            save_kernel_args=save_kernel_args,
        ),
        on,
    )
    found = capture.check(config, on, here=not elsewhere)
    if found:
        click.echo("\n".join(map(str, found)), err=True)
        ctx.exit(2)
    expected = None
    if like is not None:
        from ... import api

        expected = api.expected_mindspore(config, like)
    with output.writing(file) as stream:
        stream.write(capture.text_of(config).encode())
    if file != "-":
        click.echo(
            f'{file}: holds for {on}; before the training starts: eval "$(dumpdiff env {shlex.quote(file)})"'
        )
    if expected is not None:
        click.echo(expected, err=True)


def _devices(text: str) -> tuple[int, ...]:
    """'0,3' or '0-7' -> the numbers. Raises DumpError."""
    devices: list[int] = []
    try:
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            devices += range(int(first), int(last or first) + 1)
    except ValueError:
        raise DumpError(
            f"--device {text}: write numbers and ranges joined by commas, as 0,3 or 0-7"
        ) from None
    return tuple(devices)
