"""``dumpdiff norms TARGET REFERENCE``: read both runs' gradient norms, compare, print."""

from __future__ import annotations

import click

from . import output, stages

_EPILOG = f"""{
    stages.exits(
        agree="every parameter's gradient norm agrees",
        differ="some do not: the first line says which, and what they have in common",
        unclear="too little is common, or rounding of a precision that is not known may explain it (--precision)",
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


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("reference")
@click.option(
    "--step",
    type=click.IntRange(min=1),
    help="Of the training, from 1; the first that each side has.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="What the models are computed in, where dumps and logs do not say.",
)
@click.option(
    "--rules", metavar="FILE", multiple=True, help="Further rules for names; may be repeated."
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write every norm; - for standard output."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
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

    TARGET and REFERENCE are each a log or a folder of logs with local norms (MindSpore Transformers' 'local_norm', its
    monitor, Megatron-LM with the precision guide's patch, 'dumpdiff snippet local-norm'), MindSpore's
    local_norm__*.npy, a dump, saved gradients (.npy, .npz, .pt, .safetensors, .ckpt), or a list of numbers, with
    names or without.
    """
    output.check_writable(json_file)

    from ..gradient_norms import compare, read_norms
    from ..reports.stages import norms as report
    from ..rulebook import load_rules

    book = load_rules(rules)
    with output.progress() as progress:
        read = []
        for i, path in enumerate((target, reference)):
            if progress is not None:
                progress(f"reading {path}", i / 3)
            read.append(read_norms(path, step, book))
        if progress is not None:
            progress("comparing", 2 / 3)
        comparison = compare(read[0], read[1], book, precision or "")
    report.write(comparison, output.console(json_file), quiet=quiet, verbose=verbose)
    stages.finish(ctx, comparison.verdict, json_file, lambda: report.to_json(comparison))
