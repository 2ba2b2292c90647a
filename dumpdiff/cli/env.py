"""``dumpdiff env``: parse, call :func:`dumpdiff.env`, print variables for a shell."""

from __future__ import annotations

import click

from . import options

_EPILOG = """\b
Exit codes:
  0  printed
  2  wrong usage, or a configuration that cannot be read

\b
Examples:
  eval "$(dumpdiff env dump.json)"
  dumpdiff env --framework pytorch --shell fish | source
  docker run $(dumpdiff env dump.json --shell docker) -v "$PWD:$PWD" IMAGE python train.py
  sbatch $(dumpdiff env dump.json --shell slurm) job.sh
  dumpdiff env dump.json --explain
"""


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("config", required=False)
@click.option(
    "--shell",
    type=click.Choice(["bash", "fish", "json", "docker", "slurm"]),
    default="bash",
    show_default=True,
    help="Form of the output; bash also suits sh and zsh.",
)
@click.option(
    "--framework",
    type=click.Choice(["mindspore", "pytorch"]),
    default="mindspore",
    show_default=True,
    help="Framework of the run.",
)
@click.option(
    "--also", multiple=True, metavar="NAME", help="Variable to set as well; may be repeated."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of Python's hashes.",
)
@click.option(
    "--explain", is_flag=True, help="Say what each variable does, and since which version."
)
def env(
    config: str | None, shell: str, framework: str, also: tuple[str, ...], seed: int, explain: bool
) -> None:
    """Print the environment of a deterministic run with dumping enabled.

    CONFIG is the dump configuration of MindSpore, as 'dumpdiff dump-config mindspore' writes it;
    without it only the variables that make the run deterministic are printed.
    """
    import dumpdiff

    from ..capture import environment, shells

    values = dumpdiff.env(config, framework=framework, also=also, seed=seed)
    if explain:
        text = environment.explain_variables(framework, values)
    else:
        text = shells.SHELLS[shell](values)
    click.echo(text, nl=False)
    for remark in environment.list_remarks(values):
        click.echo(remark, err=True)
