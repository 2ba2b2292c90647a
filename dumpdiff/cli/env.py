"""``dumpdiff env``: call the library, print variables for a shell."""

from __future__ import annotations

import click

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


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@click.option(
    "--shell",
    type=click.Choice(["bash", "fish", "json", "docker", "slurm"]),
    default="bash",
    show_default=True,
    help="What it is printed for; bash is for sh and zsh too.",
)
@click.option(
    "--framework",
    type=click.Choice(["mindspore", "pytorch"]),
    default="mindspore",
    show_default=True,
    help="Whose run.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="NAME",
    help="A variable that is not set by itself; may be repeated.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Of Python's hashes.",
)
@click.option(
    "--explain", is_flag=True, help="Say what every variable is for and since when it counts."
)
def env(
    config: str | None, shell: str, framework: str, also: tuple[str, ...], seed: int, explain: bool
) -> None:
    """Print the environment of a run that is dumped and repeats itself.

    CONFIG is the dump configuration of MindSpore, as 'dumpdiff dump-config mindspore' writes it; without it only what
    makes the run repeat itself is printed.
    """
    from ..capture import environment, shells

    values = environment.environment(framework, config, also, seed)
    click.echo(
        environment.explained(framework, values) if explain else shells.SHELLS[shell](values),
        nl=False,
    )
