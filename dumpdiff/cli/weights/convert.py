"""``dumpdiff weights convert``: parse, call :func:`dumpdiff.weights.convert`, print."""

from __future__ import annotations

import re
from typing import Any

import click

from .. import options
from ..output import build_console, open_output, show_progress
from ..writing_command import OUTPUT_FOLDER, WritingCommand

_EPILOG = """\b
Exit codes:
  0  written, and the same weights as the source; with --plan: the conversion is possible
  1  written, but not the same: the first line says which parameter
  2  wrong usage, or input that cannot be converted, or a folder that is in use
 70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 closed pipe

\b
Examples:
  dumpdiff weights convert llama_hf/ --to megatron --tp 2 --pp 2 -o llama_megatron/
  dumpdiff weights convert ms_llama/ --to huggingface --heads 32 --query-groups 8 -o llama_hf/
  dumpdiff weights convert iter_0001000/ --to mindspore --true-vocab-size 151936 -o qwen_ms/
  dumpdiff weights convert llama_hf/ --to mindspore --like initial.ckpt -o mine/
  dumpdiff weights convert llama_hf/ --to megatron --plan

Nothing is ever overwritten. Hugging Face and MindSpore get safetensors (or .ckpt with --ckpt),
Megatron-LM gets model_optim_rng.pt (or torch_dist with --ckpt-format).
"""

_QKV_ORDER = click.Choice(["grouped", "concatenated"])
_GATE_UP_ORDER = click.Choice(["interleaved", "concatenated"])


def _read_counts(ctx: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the numbers of ``N,N,...``; () for an empty text."""
    if not text:
        return ()
    numbers = text.split(",")
    if not all(re.fullmatch("[0-9]{1,6}", number) for number in numbers):
        raise click.BadParameter(f"expected numbers separated by commas, as in 6,5,5; got {text}")
    return tuple(map(int, numbers))


@click.command(
    cls=WritingCommand,
    epilog=_EPILOG,
    context_settings=options.CONTEXT,
    options_metavar="[OPTIONS]",
)
@click.argument("source")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["megatron", "huggingface", "mindspore"]),
    help="Framework of the checkpoint to write.",
)
@click.option("-o", "--output", type=OUTPUT_FOLDER, help="Folder to write; new or empty.")
@click.option(
    "--huggingface-output",
    type=OUTPUT_FOLDER,
    help="Second folder, for the same weights as files of transformers.",
)
@click.option("--plan", is_flag=True, help="Print what would become what, and write nothing.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted conversion of the same source and options.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Compare with the source afterwards.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Round to this dtype.  [default: keep it]",
)
@click.option(
    "--legacy",
    is_flag=True,
    help="Older names: before Megatron-core, before MindSpore Transformers 1.5.",
)
@click.option("--ckpt", is_flag=True, help="MindSpore target: .ckpt instead of safetensors.")
@click.option(
    "--ckpt-format",
    type=click.Choice(["torch", "torch_dist"]),
    default="torch",
    show_default=True,
    help="Megatron: a file for each rank, or a distributed checkpoint for any ranks.",
)
@click.option(
    "--like",
    metavar="CHECKPOINT",
    help="Use the names of this checkpoint, of the model that will load the result.",
)
@click.option(
    "--model-type",
    metavar="NAME",
    help="Hugging Face: llama, qwen3, mixtral, ...  [default: derived]",
)
@click.option(
    "--tp",
    default=1,
    type=options.COUNT,
    show_default=True,
    help="Megatron, MindSpore: tensor-parallel ranks.",
)
@click.option(
    "--pp",
    default=1,
    type=options.COUNT,
    show_default=True,
    help="Megatron, MindSpore: pipeline stages.",
)
@click.option(
    "--vpp",
    default=1,
    type=options.COUNT,
    show_default=True,
    help="Megatron: virtual stages on each pipeline rank.",
)
@click.option(
    "--ep",
    default=1,
    type=options.COUNT,
    show_default=True,
    help="Megatron: expert-parallel ranks.",
)
@click.option(
    "--etp",
    metavar="N",
    type=options.COUNT,
    help="Megatron: tensor-parallel ranks of an expert.  [default: --tp]",
)
@click.option(
    "--stage-layers",
    metavar="N,N,...",
    default="",
    callback=_read_counts,
    help="Megatron, MindSpore: layers of each stage, --pp times --vpp numbers.  [default: equal]",
)
@click.option(
    "--transformer-impl",
    type=click.Choice(["local", "transformer_engine"]),
    default="local",
    show_default=True,
    help="Megatron: layers that will load it; they name norms and experts differently.",
)
@click.option(
    "--true-vocab-size",
    metavar="N",
    type=options.COUNT,
    help="Rows of the source's embedding without padding.",
)
@click.option(
    "--make-vocab-size-divisible-by",
    default=128,
    type=options.COUNT,
    show_default=True,
    help="Megatron: pad the vocabulary to a multiple of this times --tp.",
)
@click.option(
    "--padded-vocab-size", metavar="N", type=options.COUNT, help="Pad the vocabulary to this size."
)
@click.option(
    "--heads", metavar="N", type=options.COUNT, help="Attention heads.  [default: the source's]"
)
@click.option("--query-groups", metavar="N", type=options.COUNT, help="Heads of keys and values.")
@click.option("--experts", metavar="N", type=options.COUNT, help="Experts in a stack.")
@click.option(
    "--swiglu/--no-swiglu", default=None, help="The MLP has a gate.  [default: by its shapes]"
)
@click.option(
    "--bias/--no-bias",
    default=None,
    help="Linear layers have biases, zeros where the source has none.",
)
@click.option(
    "--normalization",
    type=click.Choice(["RMSNorm", "LayerNorm"]),
    help="Norms of the source; checked.",
)
@click.option(
    "--position-embedding-type",
    type=click.Choice(["rope", "learned_absolute"]),
    help="Position embedding of the source; checked.",
)
@click.option(
    "--max-position-embeddings",
    metavar="N",
    type=options.COUNT,
    help="Longest sequence, if the source does not state it.",
)
@click.option(
    "--rotary-base",
    metavar="X",
    type=click.FloatRange(min=0, min_open=True),
    help="Base of RoPE, if the source does not state it.",
)
@click.option(
    "--norm-epsilon",
    metavar="X",
    type=click.FloatRange(min=0, min_open=True),
    help="Epsilon of the norms, if the source does not state it.",
)
@click.option(
    "--from-qkv",
    type=_QKV_ORDER,
    help="MindSpore source: q, k, v by query group, or one after the other.",
)
@click.option(
    "--from-gate-up",
    type=_GATE_UP_ORDER,
    help="MindSpore source: gate and up row by row, or one after the other.",
)
@click.option(
    "--qkv",
    type=_QKV_ORDER,
    default="grouped",
    show_default=True,
    help="MindSpore target: order of q, k, v.",
)
@click.option(
    "--gate-up",
    type=_GATE_UP_ORDER,
    default="interleaved",
    show_default=True,
    help="MindSpore target: order of gate and up.",
)
@options.rules
@options.json_file
@options.quiet
@click.pass_context
def convert(
    ctx: click.Context,
    /,
    source: str,
    to: Any,
    output: str | None,
    plan: bool,
    json_file: str | None,
    quiet: bool,
    **choices: Any,
) -> None:
    """Write a checkpoint as another framework has it, and check that it holds the same weights.

    SOURCE is anything that `dumpdiff weights` reads. Names, fused and transposed weights, stacked
    experts, shards and the padding of the vocabulary become those of the target; every element
    keeps its value, unless --dtype is given.
    """
    if output is None and not plan:
        raise click.UsageError("give -o FOLDER to write, or --plan to write nothing")
    import dumpdiff

    from ...reports.conversion import json, text

    with show_progress() as progress:
        result = dumpdiff.weights.convert(
            source, to, output, plan=plan, progress=progress, **choices
        )
    console = build_console(json_file)
    for part in result.parts:
        text.write(part, console, quiet=quiet)
    if json_file is not None:
        with open_output(json_file) as stream:
            json.write(result, stream)
    ctx.exit(1 if any(part.verified is False for part in result.parts) else 0)
