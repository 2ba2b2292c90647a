"""``dumpdiff norms TARGET REFERENCE``: parse, call :func:`dumpdiff.norms`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="every parameter's gradient norm agrees",
        differ="some differ: the first line says which, and what they have in common",
        inconclusive="too few common norms, or rounding may explain the difference (--precision)",
    )
}
\b
Examples:
  dumpdiff norms msrun_log/worker_0.log megatron.log
  dumpdiff norms ms_dump/ pt_dump/ --json norms.json
  dumpdiff norms gradients_ms/ gradients_pt/ -v
  dumpdiff norms norms.txt megatron.log --step 2 --precision bfloat16

'dumpdiff snippet local-norm' prints the code that makes a run print its norms, with names.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target")
@click.argument("reference")
@click.option(
    "--step",
    type=options.COUNT,
    help="Step of the training, from 1.  [default: the first of each side]",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Compute dtype of the models, where dumps and logs do not say.",
)
@options.rules
@options.json_file
@options.language
@options.quiet
@click.option("-v", "--verbose", is_flag=True, help="Print every norm.")
@click.pass_context
def norms(
    ctx: click.Context,
    target: str,
    reference: str,
    step: int | None,
    precision: str | None,
    rules: tuple[str, ...],
    json_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Compare the gradient norm of every parameter.

    TARGET and REFERENCE are each a log or a folder of logs with local norms (MindSpore
    Transformers' 'local_norm', its monitor, Megatron-LM with the precision guide's patch, 'dumpdiff
    snippet local-norm'), MindSpore's local_norm__*.npy, the CSV of msprobe's monitors, event files
    of TensorBoard, a dump, saved gradients (.npy, .npz, .pt, .safetensors, .ckpt), or a list of
    numbers, with or without names.
    """
    import dumpdiff

    from ..reports.stages import norms

    with output.show_progress() as progress:
        comparison = dumpdiff.norms(
            target, reference, step=step, precision=precision, rules=rules, progress=progress
        )
    norms.write(comparison, output.build_console(json_file), quiet=quiet, verbose=verbose)
    output.finish(ctx, comparison.verdict, json_file, lambda: norms.to_json(comparison))
