"""``dumpdiff logs TARGET REFERENCE``: read both runs' training logs, compare, print."""

from __future__ import annotations

import click

from . import output, stages

_EPILOG = f"""{
    stages.exits(
        agree="the runs agree by the migration standard",
        differ="they do not: the first line says by which criterion, and from which step",
        unclear="too few steps, or too little printed to judge by",
    )
}
\b
Examples:
  dumpdiff logs msrun_log/ megatron.log
  dumpdiff logs msrun_log/worker_7.log megatron.log --min-steps 10 --svg curves.svg
  dumpdiff logs msrun_log/ gpu_1.log --baseline gpu_2.log --baseline gpu_3.log --json logs.json

The standard: first loss within 0.005 or 0.5 %, mean loss within 0.01 or 1 %, global norm within 10 % on average,
equal learning rates, over at least 1000 steps.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("reference")
@click.option(
    "--baseline", metavar="LOG", multiple=True, help="A further run of REFERENCE; may be repeated."
)
@click.option(
    "--min-steps",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Steps that agreement needs.",
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write criteria and curves; - for standard output."
)
@click.option(
    "--svg", "svg_file", metavar="FILE", help="Draw both runs' curves; - for standard output."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
@click.option("-v", "--verbose", is_flag=True, help="Print every step too.")
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

    TARGET and REFERENCE are each a log of Megatron-LM, MindSpore Transformers, ms-swift or the Hugging Face Trainer, or
    a folder with the logs of all ranks. With --baseline, what runs of the reference differ by is allowed to TARGET.
    """
    output.check_writable(json_file, svg_file)

    from ..reports.stages import logs as report
    from ..training_logs import compare, read_log

    with output.progress() as progress:
        read = []
        for i, path in enumerate((target, reference, *baseline)):
            if progress is not None:
                progress(f"reading {path}", i / (2 + len(baseline)))
            read.append(read_log(path))
    comparison = compare(read[0], read[1], read[2:], min_steps)
    report.write(comparison, output.console(json_file, svg_file), quiet=quiet, verbose=verbose)
    if svg_file is not None:
        from ..reports.stages.curves import write_svg

        with output.writing(svg_file) as stream:
            write_svg(comparison, stream)
    stages.finish(ctx, comparison.verdict, json_file, lambda: report.to_json(comparison))
