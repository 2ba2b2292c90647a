"""``dumpdiff snippet KIND``: parse, call :func:`dumpdiff.snippet`, print code to paste."""

from __future__ import annotations

import click

from . import options

_KINDS = ("seed", "local-norm", "save-grads", "load-grads", "dump")
_FRAMEWORKS = ("pytorch", "mindspore", "megatron", "mindformers")

_EPILOG = """\b
Kinds:
  seed        gives the same random numbers and the same arithmetic in every run
  local-norm  prints the L2 norm of each parameter's gradient with its name
  save-grads  saves the gradient of each parameter for the other run to load
  load-grads  replaces the gradients by saved ones before the optimizer step
  dump        dumps the steps that the configuration selects

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


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
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
    help="Random seed.",
)
@click.option(
    "--rank",
    type=options.NUMBER,
    default=0,
    show_default=True,
    help="Process that prints or saves.",
)
@click.option(
    "--folder", default="gradients", show_default=True, help="Folder of the saved gradients."
)
@click.option(
    "--config", metavar="FILE", help="Dump configuration.  [msprobe's config.json, or dump.json]"
)
def snippet(
    kind: str, framework: str, seed: int, rank: int, folder: str, config: str | None
) -> None:
    """Print code to paste into a training script.

    Comments in the code say where to paste it and what to call.
    """
    import dumpdiff

    text = dumpdiff.snippet(
        kind, framework=framework, seed=seed, rank=rank, folder=folder, config=config
    )
    click.echo(text, nl=False)
