"""``dumpdiff snippet KIND``: parse, call :func:`dumpdiff.snippet`, print code to paste."""

from __future__ import annotations

from typing import Literal

import click

from . import options

_GRAFT = "graft"
_KINDS = ("seed", "local-norm", "save-grads", "load-grads", "dump", _GRAFT)
_FRAMEWORKS = ("pytorch", "mindspore", "megatron", "mindformers")

_EPILOG = """\b
Kinds:
  seed        gives the same random numbers and the same arithmetic in every run
  local-norm  prints the L2 norm of each parameter's gradient with its name
  save-grads  saves the gradient of each parameter for the other run to load
  load-grads  replaces the gradients by saved ones before the optimizer step
  dump        dumps the steps that the configuration selects
  graft       loads the reference's value of one module into the target's run

\b
Exit codes:
  0  printed
  2  wrong usage; of graft, a result or dump that cannot be used

\b
Examples:
  dumpdiff snippet seed --framework megatron --seed 1234
  dumpdiff snippet local-norm --framework mindformers --rank 7
  dumpdiff snippet save-grads --framework pytorch --folder /data/gradients
  dumpdiff snippet graft result/ --finding 1 > graft_modules.py
"""


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("kind", type=click.Choice(_KINDS), metavar="KIND")
@click.argument("result", required=False)
@click.option(
    "--framework",
    type=click.Choice(_FRAMEWORKS),
    help="Required, except for graft. megatron: Megatron-LM; mindformers: MindSpore Transformers.",
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
    "--folder",
    metavar="FOLDER",
    help="Folder of the saved gradients or grafted values.  [gradients, or graft]",
)
@click.option(
    "--finding", default="1", show_default=True, metavar="RANK|ID", help="Of graft: which finding."
)
@click.option(
    "--input",
    "place",
    flag_value="input",
    default="output",
    help="Of graft: replace the module's input, not its output.",
)
@click.option(
    "--config", metavar="FILE", help="Dump configuration.  [msprobe's config.json, or dump.json]"
)
def snippet(
    kind: str,
    result: str | None,
    framework: str | None,
    seed: int,
    rank: int,
    folder: str | None,
    finding: str,
    place: Literal["input", "output"],
    config: str | None,
) -> None:
    """Print code to paste into a training script.

    Comments in the code say where to paste it and what to call. RESULT, the folder of 'dumpdiff
    align -o', is only for graft, which also writes the values into its folder.
    """
    import dumpdiff

    if kind == _GRAFT:
        if result is None:
            raise click.UsageError("graft needs RESULT, the folder of 'dumpdiff align -o'")
        click.echo(dumpdiff.graft(result, finding, place=place, folder=folder or "graft"), nl=False)
        return
    if framework is None:
        raise click.UsageError(f"{kind} needs --framework")
    if result is not None:
        raise click.UsageError(f"{kind} takes no RESULT")
    text = dumpdiff.snippet(
        kind,
        framework=framework,
        seed=seed,
        rank=rank,
        folder=folder or "gradients",
        config=config,
    )
    click.echo(text, nl=False)
