"""``dumpdiff logs TARGET REFERENCE``: parse, call :func:`dumpdiff.logs`, print."""

from __future__ import annotations

import click

from . import options, output
from .writing_command import OUTPUT_FILE, WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="the runs agree by the migration standard",
        differ="they do not: the first line says from which step on, and by which criterion",
        inconclusive="too few common steps, or too few printed digits to decide",
    )
}
\b
Examples:
  dumpdiff logs msrun_log/ megatron.log
  dumpdiff logs msrun_log/worker_7.log megatron.log --min-steps 10 --svg curves.svg
  dumpdiff logs msrun_log/ gpu_1.log --baseline gpu_2.log --baseline gpu_3.log --json logs.json

The standard: first loss within 0.005 or 0.5 %, mean loss within 0.01 or 1 %, global norm within
10 % on average, equal learning rates, over at least 1000 steps.
"""


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target")
@click.argument("reference")
@click.option(
    "--baseline",
    metavar="LOG",
    multiple=True,
    help="Another run of the reference; may be repeated.",
)
@click.option(
    "--min-steps",
    type=options.COUNT,
    default=1000,
    show_default=True,
    help="Number of common steps that agreement needs.",
)
@options.json_file
@click.option(
    "--svg",
    "svg_file",
    type=OUTPUT_FILE,
    help="Draw the curves of both runs; - for standard output.",
)
@options.language
@options.quiet
@click.option("-v", "--verbose", is_flag=True, help="Also print every step.")
@click.pass_context
def logs(
    ctx: click.Context,
    target: str,
    reference: str,
    baseline: tuple[str, ...],
    min_steps: int,
    json_file: str | None,
    svg_file: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Compare the training logs of two runs.

    TARGET and REFERENCE are each a log of Megatron-LM, MindSpore Transformers, the Hugging Face
    Trainer, ms-swift, LLaMA-Factory, NeMo, torchtitan or verl, an event file of TensorBoard, a CSV
    of metrics, or a folder with the logs of all ranks. With --baseline, differences between runs of
    the reference are allowed.
    """
    import dumpdiff

    from ..reports.stages import logs

    with output.show_progress() as progress:
        comparison = dumpdiff.logs(
            target, reference, baseline=baseline, min_steps=min_steps, progress=progress
        )
    console = output.build_console(json_file, svg_file)
    logs.write(comparison, console, quiet=quiet, verbose=verbose)
    if svg_file is not None:
        from ..reports.stages import curves

        with output.open_output(svg_file) as stream:
            curves.write(comparison, stream)
    output.finish(ctx, comparison.verdict, json_file, lambda: logs.to_json(comparison))
