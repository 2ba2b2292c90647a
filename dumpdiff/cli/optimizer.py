"""``dumpdiff optimizer TARGET [REFERENCE]``: parse, call :func:`dumpdiff.optimizer`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = """\b
Exit codes:
  0  one rule explains the updates; with REFERENCE: the same rule on both sides
  1  different rules, or the same rule with different numbers
  2  wrong usage, or input or output that cannot be used
  3  inconclusive: no rule explains the updates, or several do

\b
Examples:
  dumpdiff optimizer ms_steps/ pt_steps/
  dumpdiff optimizer ms_steps/ --settings settings.yaml
  dumpdiff optimizer before.ckpt,gradients.npz,after.ckpt
  dumpdiff optimizer w0.pt,g1.pt,w1.pt,g2.pt,w2.pt pt_steps/ --json optimizer.json

\b
In a training script, step by step (any of .npz, .pt, .safetensors, .ckpt, a folder of .npy):
  steps/weights_0.npz     before the first step
  steps/gradients_1.npz   what the optimizer was given
  steps/weights_1.npz     after the first step; then gradients_2, weights_2, ...
  steps/settings.yaml     if known: learning_rate, betas, eps, weight_decay, momentum,
                          clip_grad, loss_scale, step

Two steps distinguish nearly all rules; one step does not.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target")
@click.argument("reference", required=False)
@click.option(
    "--settings", metavar="FILE", help="YAML or JSON file of what is known of the optimizer."
)
@options.json_file
@options.language
@options.quiet
@click.option("-v", "--verbose", is_flag=True, help="Name every parameter of a group.")
@click.pass_context
def optimizer(
    ctx: click.Context,
    target: str,
    reference: str | None,
    settings: str | None,
    json_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Say which rule updated the weights: SGD, Adam, AdamW, ... and with which numbers.

    TARGET and REFERENCE are runs of a few steps: a folder with weights_0, gradients_1, weights_1,
    ...; or such files in that order separated by commas; or a dump of several steps. Every rule's
    updates are computed again in float64; learning rate and other numbers are solved for where no
    settings are given.
    """
    import dumpdiff

    from ..reports.stages import optimizer

    with output.show_progress() as progress:
        analysis = dumpdiff.optimizer(target, reference, settings=settings, progress=progress)
    optimizer.write(analysis, output.build_console(json_file), quiet=quiet, verbose=verbose)
    document = optimizer.to_json(analysis)
    output.finish(ctx, document["verdict"], json_file, lambda: document)
