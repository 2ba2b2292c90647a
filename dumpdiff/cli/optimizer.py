"""``dumpdiff optimizer TARGET [REFERENCE]``: parse, call the library, print which rule moved the weights."""

from __future__ import annotations

import click

from . import output

EXIT_CODES = {
    "same": 0,
    "explained": 0,
    "different": 1,
}  #: of verdicts; all others mean that it cannot be told
_UNTOLD = 3

_EPILOG = """\b
Exit codes:
  0  one rule explains the weights; with REFERENCE: the same on both sides
  1  different rules, or the same with other numbers
  2  wrong usage, or input or output that cannot be used
  3  cannot tell: no rule explains the weights, or several do

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
  steps/settings.yaml     if known: learning_rate, betas, eps, weight_decay, momentum, clip_grad, loss_scale, step

Two steps tell nearly all rules apart, one does not.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("reference", required=False)
@click.option(
    "--settings",
    "settings_file",
    metavar="FILE",
    help="YAML or JSON: what is known of the optimizer.",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write everything; - for standard output."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
@click.option("-v", "--verbose", is_flag=True, help="Name every parameter of a group.")
@click.pass_context
def optimizer(
    ctx: click.Context,
    target: str,
    reference: str | None,
    settings_file: str | None,
    json_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Say which rule moved the weights: SGD, Adam, AdamW, ... and with which numbers.

    TARGET and REFERENCE are runs of a few steps: a folder with weights_0, gradients_1, weights_1, ...; or such files
    in that order with commas between them; or a dump of several steps. The updates are computed again in float64 by
    every rule; learning rate and other numbers are solved for where no settings are given.
    """
    output.check_writable(json_file)

    from .. import api
    from ..reports.alignment import json
    from ..reports.stages import optimizer as report

    with output.progress() as progress:
        found = api.optimizer(target, reference, settings=settings_file, progress=progress)
    report.write(found, output.console(json_file), quiet=quiet, verbose=verbose)
    if json_file is not None:
        with output.writing(json_file) as stream:
            json.write_document(report.to_json(found), stream)
    ctx.exit(EXIT_CODES.get(report.to_json(found)["verdict"], _UNTOLD))
