"""``dumpdiff data TARGET REFERENCE``: parse, call :func:`dumpdiff.data`, print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from . import options, output
from .writing_command import WritingCommand

_EPILOG = f"""{
    output.format_exit_codes(
        agree="both runs saw the same batch",
        differ="they did not: the first line says how the two batches are related",
        inconclusive="too little is recorded to decide",
    )
}
\b
Examples:
  dumpdiff data ms_dump/ pt_dump/
  dumpdiff data ms_dump/ corpus_text_document --seq-length 4096 --global-batch-size 8 \\
      --samples 8000 --seed 1234
  dumpdiff data '1 corpus_text_document' corpus_text_document --seq-length 4096 --samples 8000 \\
      --split 1,0,0:969,30,1 --loader mindformers:megatron
  dumpdiff data batch_ms.npz batch_pt.pt --vocab-size 32000 --tokenizer tokenizer.json

How a dataset is packed is given as one value for both runs, or as TARGET:REFERENCE where they
differ.
"""


def _build_callback(kind: Any) -> Callable[..., tuple[Any, Any] | None]:
    """Return a callback that converts ``A`` (for both runs) or ``A:B`` into two values."""

    def convert(
        ctx: click.Context, param: click.Parameter, value: str | None
    ) -> tuple[Any, Any] | None:
        if value is None:
            return None
        parts = value.split(":")
        if len(parts) > 2:
            raise click.BadParameter(f"{value!r} is not VALUE or TARGET:REFERENCE", ctx, param)
        values = [kind.convert(part, param, ctx) for part in parts]
        return values[0], values[-1]

    return convert


_COUNT = _build_callback(options.COUNT)
_NUMBER = _build_callback(options.NUMBER)
_TEXT = _build_callback(click.STRING)
_LOADER = _build_callback(click.Choice(["megatron", "mindformers"]))


@click.command(cls=WritingCommand, epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("target")
@click.argument("reference")
@click.option("--seq-length", callback=_COUNT, metavar="N", help="Tokens of a sample.")
@click.option("--global-batch-size", callback=_COUNT, metavar="N", help="Samples of a step.")
@click.option(
    "--micro-batch-size", callback=_COUNT, metavar="N", help="Samples of a micro-batch.  [1]"
)
@click.option("--data-parallel", callback=_COUNT, metavar="N", help="Data-parallel ranks.  [1]")
@click.option(
    "--samples",
    callback=_COUNT,
    metavar="N",
    help="Samples of the whole training: iterations x batch.  [one epoch]",
)
@click.option("--seed", callback=_NUMBER, metavar="N", help="Seed of the data.  [1234]")
@click.option(
    "--split", callback=_TEXT, metavar="WEIGHTS", help="Training, validation, test.  [969,30,1]"
)
@click.option(
    "--loader",
    callback=_LOADER,
    metavar="NAME",
    help="Loader that packs the dataset: megatron or mindformers.  [megatron]",
)
@click.option(
    "--vocab-size",
    type=options.COUNT,
    help="Token ids must be below it.  [rows of the embedding]",
)
@click.option("--bos-id", type=int, help="Id of the begin-of-sequence token: counted.")
@click.option("--eos-id", type=int, help="Id of the end-of-sequence token: counted.")
@click.option("--pad-id", type=int, help="Id of padding: counted; must not enter the loss.")
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json: print a sample as text.")
@click.option(
    "--sample",
    type=options.NUMBER,
    help="Sample to print.  [the first that differs, else 0]",
)
@click.option("--step", type=int, help="Step of a dump.  [the first]")
@click.option("--rank", type=int, help="Rank of a dump or dataset.  [all]")
@options.json_file
@options.language
@options.quiet
@click.option("-v", "--verbose", is_flag=True, help="Also print the first ids of the samples.")
@click.pass_context
def data(
    ctx: click.Context,
    /,
    target: str,
    reference: str,
    json_file: str | None,
    quiet: bool,
    verbose: bool,
    **choices: Any,
) -> None:
    """Compare the first batches of two runs.

    TARGET and REFERENCE are each a dump (the token ids that its embedding reads, the labels that
    its loss reads), a dataset of Megatron (NAME of NAME.bin and NAME.idx, or a blend as --data-path
    takes it), or a saved batch (npz, npy, torch, safetensors).
    """
    import dumpdiff

    from ..reports.stages import data

    with output.show_progress() as progress:
        comparison = dumpdiff.data(target, reference, **choices, progress=progress)
    data.write(comparison, output.build_console(json_file), quiet=quiet, verbose=verbose)
    output.finish(ctx, comparison.verdict, json_file, lambda: data.to_json(comparison))
