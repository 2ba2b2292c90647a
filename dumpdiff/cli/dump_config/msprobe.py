"""``dumpdiff dump-config msprobe``: options -> config.json, and the lines for the training script."""

from __future__ import annotations

import os

import click

from .. import output

_EPILOG = """\b
Exit codes:
  0  written
  2  wrong usage, what msprobe would refuse or ignore, or a file that cannot be written

\b
Examples:
  dumpdiff dump-config msprobe --framework pytorch -o config.json
  dumpdiff dump-config msprobe --framework pytorch --task tensor --step 5-8 --list Functional.softmax -o config.json
  dumpdiff dump-config msprobe --framework mindspore --script mindformers -o config.json
  dumpdiff dump-config msprobe --framework pytorch --msprobe-version 8.3 --tensor-list layers.1. -o config.json
  dumpdiff dump-config msprobe --framework pytorch --task tensor --step 0-9 --like pt_statistics/ -o config.json

The lines for the training script are printed; the configuration is, if there is no -o, and they are left out.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--framework", type=click.Choice(["pytorch", "mindspore"]), required=True)
@click.option(
    "--msprobe-version", default="26.2", show_default=True, help="Version of mindstudio-probe."
)
@click.option(
    "--script",
    type=click.Choice(["plain", "megatron", "mindformers"]),
    default="plain",
    show_default=True,
    help="What kind of training script the lines are for.",
)
@click.option("--path", metavar="FOLDER", help="Where the dump goes.  [./dump]")
@click.option(
    "--task", type=click.Choice(["statistics", "tensor"]), default="statistics", show_default=True
)
@click.option(
    "--level", type=click.Choice(["L0", "L1", "mix", "L2"]), default="mix", show_default=True
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    metavar="STEP",
    help="0 or 5-8, may be repeated; all: every step.  [0]",
)
@click.option(
    "--rank", "ranks", multiple=True, metavar="RANK", help="0 or 4-7, may be repeated.  [all]"
)
@click.option(
    "--list",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only calls whose names contain it; repeatable.",
)
@click.option(
    "--scope", nargs=2, metavar="FIRST LAST", help="Only calls from one to another, by full names."
)
@click.option(
    "--data-mode",
    multiple=True,
    type=click.Choice(["all", "forward", "backward", "input", "output"]),
    default=["all"],
    show_default="all",
)
@click.option(
    "--summary-mode",
    type=click.Choice(["statistics", "md5"]),
    default="statistics",
    show_default=True,
)
@click.option(
    "--tensor-list",
    multiple=True,
    metavar="NAME",
    help="Whole tensors of these beside all statistics.",
)
@click.option("--precision", type=click.Choice(["low", "high"]), help="Of the statistics.")
@click.option(
    "--risk-level",
    type=click.Choice(["CORE", "FOCUS", "ALL"]),
    help="Which PyTorch APIs are recorded.",
)
@click.option(
    "--like", metavar="DUMP", help="Say what the dump will cost, if the run is like this one."
)
@click.option(
    "-o", "--output", "file", default="-", metavar="FILE", help="Write here; - for standard output."
)
def msprobe(
    framework: str,
    msprobe_version: str,
    script: str,
    path: str | None,
    task: str,
    level: str,
    steps: tuple[str, ...],
    ranks: tuple[str, ...],
    names: tuple[str, ...],
    scope: tuple[str, str] | None,
    data_mode: tuple[str, ...],
    summary_mode: str,
    tensor_list: tuple[str, ...],
    precision: str | None,
    risk_level: str | None,
    like: str | None,
    file: str,
) -> None:
    """Write msprobe's config.json and print the lines that the training script needs."""
    output.check_writable(file)

    from ...capture.msprobe import Options, configuration, lines, parse_version, text_of

    options = Options(
        path=os.path.abspath("dump") if path is None else path,
        framework=framework,
        version=parse_version(msprobe_version),
        task=task,
        level=level,
        steps=() if steps == ("all",) else steps or ("0",),
        ranks=ranks,
        names=names,
        scope=scope or (),
        data_mode=data_mode,
        summary_mode=summary_mode,
        tensor_list=tensor_list,
        precision=precision or "",
        risk_level=risk_level or "",
    )
    config = configuration(options)
    pasted = lines(os.path.abspath(file), framework, script, options.version)
    expected = None
    if like is not None:
        from ... import api

        expected = api.expected_msprobe(options, like)
    with output.writing(file) as stream:
        stream.write(text_of(config).encode())
    if file != "-":
        click.echo(pasted, nl=False)
    if expected is not None:
        click.echo(expected, err=True)
