"""``dumpdiff snippet KIND``: print code to paste into a training script."""

from __future__ import annotations

import click

_KINDS = ("seed", "local-norm", "save-grads", "load-grads", "dump")
_FRAMEWORKS = ("pytorch", "mindspore", "megatron", "mindformers")

_EPILOG = """\b
Kinds:
  seed        the same random numbers and the same arithmetic in every run
  local-norm  prints the L2 norm of every parameter's gradient, named
  save-grads  saves every parameter's gradient, to be loaded by the other run
  load-grads  lets the optimizer work on saved gradients
  dump        dumps the steps that a configuration asks for

\b
Exit codes:
  0  printed
  2  wrong usage

\b
Examples:
  dumpdiff snippet seed --framework megatron --seed 1234
  dumpdiff snippet local-norm --framework mindformers --rank 7
  dumpdiff snippet save-grads --framework pytorch --folder /data/gradients
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("kind", type=click.Choice(_KINDS), metavar="KIND")
@click.option(
    "--framework",
    type=click.Choice(_FRAMEWORKS),
    required=True,
    help="megatron: Megatron-LM; mindformers: MindSpore Transformers.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=42,
    show_default=True,
    help="Of random numbers.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Process that prints or saves.",
)
@click.option(
    "--folder", default="gradients", show_default=True, help="Where gradients are saved and loaded."
)
@click.option(
    "--config",
    metavar="FILE",
    help="Configuration of the dump.  [config.json of msprobe, else dump.json]",
)
def snippet(
    kind: str, framework: str, seed: int, rank: int, folder: str, config: str | None
) -> None:
    """Print code to paste into a training script.

    It comments where to paste it and what to call.
    """
    from ..capture import snippets

    click.echo(
        snippets.snippet(kind, framework, seed=seed, rank=rank, folder=folder, config=config),
        nl=False,
    )
