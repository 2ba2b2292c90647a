"""``dumpdiff data TARGET REFERENCE``: read both runs' first batches, compare, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import output, stages

if TYPE_CHECKING:
    from ..batches import Batch, DataComparison

_EPILOG = f"""{
    stages.exits(
        agree="both runs saw the same batch",
        differ="they did not: the first line says how the two are related",
        unclear="too little is recorded to tell",
    )
}
\b
Examples:
  dumpdiff data ms_dump/ pt_dump/
  dumpdiff data ms_dump/ corpus_text_document --seq-length 4096 --global-batch-size 8 --samples 8000 --seed 1234
  dumpdiff data '1 corpus_text_document' corpus_text_document --seq-length 4096 --samples 8000 \\
      --split 1,0,0:969,30,1 --loader mindformers:megatron
  dumpdiff data batch_ms.npz batch_pt.pt --vocab-size 32000 --tokenizer tokenizer.json

How a dataset is cut is said by one value for both sides, or by TARGET:REFERENCE where the two differ.
"""


def _both(kind: Any) -> Any:
    """What turns an option's ``A`` (for both sides) or ``A:B`` into two values of a click type."""

    def turned(
        ctx: click.Context, param: click.Parameter, value: str | None
    ) -> tuple[Any, Any] | None:
        if value is None:
            return None
        parts = value.split(":")
        if len(parts) > 2:
            raise click.BadParameter(f"{value!r} is no value and no TARGET:REFERENCE", ctx, param)
        found = [kind.convert(part, param, ctx) for part in parts]
        return found[0], found[-1]

    return turned


_COUNT, _NUMBER = _both(click.IntRange(min=1)), _both(click.IntRange(min=0))
_LOADER = _both(click.Choice(["megatron", "mindformers"]))


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("reference")
@click.option(
    "--seq-length", "sequence_length", callback=_COUNT, metavar="N", help="Tokens of a sample."
)
@click.option(
    "--global-batch-size", "global_batch", callback=_COUNT, metavar="N", help="Samples of a step."
)
@click.option(
    "--micro-batch-size",
    "micro_batch",
    callback=_COUNT,
    metavar="N",
    help="Samples of a micro-batch [1].",
)
@click.option("--data-parallel", callback=_COUNT, metavar="N", help="Data-parallel ranks [1].")
@click.option(
    "--samples",
    callback=_COUNT,
    metavar="N",
    help="Samples of the whole training: iterations x batch [one epoch].",
)
@click.option("--seed", callback=_NUMBER, metavar="N", help="Seed of the data [1234].")
@click.option(
    "--split",
    callback=_both(click.STRING),
    metavar="WEIGHTS",
    help="Training, validation, test [969,30,1].",
)
@click.option(
    "--loader",
    callback=_LOADER,
    metavar="NAME",
    help="megatron or mindformers: whose way to pack [megatron].",
)
@click.option(
    "--vocab-size", type=click.IntRange(min=1), help="Ids must be below it [rows of the embedding]."
)
@click.option("--bos-id", type=int, help="Counted.")
@click.option("--eos-id", type=int, help="Counted.")
@click.option("--pad-id", type=int, help="Counted; must not enter the loss.")
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json: print a sample as text.")
@click.option(
    "--sample", type=click.IntRange(min=0), help="Which sample [the first that differs, else 0]."
)
@click.option("--step", type=int, help="The step of a dump [the first].")
@click.option("--rank", type=int, help="The rank of a dump or dataset [all].")
@click.option("--json", "json_file", metavar="FILE", help="Write all of it; - for standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
@click.option("-v", "--verbose", is_flag=True, help="Print the first ids of the samples too.")
@click.pass_context
def data(
    ctx: click.Context,
    /,
    target: str,
    reference: str,
    vocab_size: int | None,
    bos_id: int | None,
    eos_id: int | None,
    pad_id: int | None,
    tokenizer: str | None,
    sample: int | None,
    step: int | None,
    rank: int | None,
    json_file: str | None,
    quiet: bool,
    verbose: bool,
    **packing: tuple[Any, Any] | None,
) -> None:
    """Compare the first batches of two runs.

    TARGET and REFERENCE are each a dump (the token ids that its embedding reads, the labels that its loss reads), a
    dataset of Megatron (NAME of NAME.bin and NAME.idx, or a blend as --data-path takes it), or a saved batch (npz, npy,
    torch, safetensors).
    """
    output.check_writable(json_file)

    from ..batches import Ids, Packing, compare, read_batches
    from ..batches.tokenizer import decoded, open_tokenizer, special_ids
    from ..reports.stages import data as report

    opened = None if tokenizer is None else open_tokenizer(tokenizer)
    sides: list[dict[str, Any]] = [
        {name: value[i] for name, value in packing.items() if value is not None} for i in range(2)
    ]
    with output.progress() as progress:
        read = []
        for i, path in enumerate((target, reference)):
            if progress is not None:
                progress(f"reading {path}", i / 2)
            how = Packing(**sides[i], eod=eos_id, pad=pad_id)
            read.append(read_batches(path, how, step=step, rank=rank))
    if (
        opened is not None
        and vocab_size is None
        and all(batch.vocabulary is None for batch in read)
    ):
        vocab_size = opened.get_vocab_size(with_added_tokens=True)
    names = {} if opened is None else special_ids(opened)
    comparison = compare(read[0], read[1], Ids(vocab_size, bos_id, eos_id, pad_id, names))
    texts: dict[str, str] = {}
    if opened is not None:
        chosen = _sample(comparison) if sample is None else sample
        for side, batch in (("target", read[0]), ("reference", read[1])):
            texts |= {
                f"{side}, sample {chosen}": decoded(opened, row) for row in _row(batch, chosen)
            }
    report.write(comparison, output.console(json_file), texts, quiet=quiet, verbose=verbose)
    stages.finish(ctx, comparison.verdict, json_file, lambda: report.to_json(comparison, texts))


def _sample(comparison: DataComparison) -> int:
    relation = comparison.relation
    return 0 if relation is None or relation.first is None else relation.first[0]


def _row(batch: Batch, number: int) -> list[Any]:
    """The tokens of a sample, or none."""
    return [] if batch.tokens is None or number >= batch.samples else [batch.tokens[number]]
