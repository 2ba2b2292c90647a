"""``dumpdiff weights convert SOURCE -o FOLDER --to FRAMEWORK``: parse, call :func:`dumpdiff.api.convert`, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import output

if TYPE_CHECKING:
    from ...conversion import Reading, Wanted

_EPILOG = """\b
Exit codes:
  0  written, and the same weights as the source; with --plan: it can be
  1  written, but not the same: the first line says which parameter
  2  wrong usage, or input that cannot be converted, or a folder that is in use
 70  a bug in dumpdiff, with a traceback; 130 interrupted; 141 the reader of a pipe went away

\b
Examples:
  dumpdiff weights convert llama_hf/ --to megatron --tp 2 --pp 2 -o llama_megatron/
  dumpdiff weights convert ms_llama/ --to huggingface --heads 32 --query-groups 8 -o llama_hf/
  dumpdiff weights convert iter_0001000/ --to mindspore --true-vocab-size 151936 -o qwen_ms/
  dumpdiff weights convert llama_hf/ --to mindspore --like initial.ckpt -o mine/
  dumpdiff weights convert llama_hf/ --to megatron --plan

Nothing is ever overwritten. Written are safetensors for Hugging Face and MindSpore, model_optim_rng.pt for Megatron-LM.
"""

_TURNS = click.Choice(["grouped", "concatenated"])
_PAIRED = click.Choice(["interleaved", "concatenated"])
_COUNT = click.IntRange(min=1)


@click.command(
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@click.argument("source")
@click.option(
    "--to",
    "to",
    required=True,
    type=click.Choice(["megatron", "huggingface", "mindspore"]),
    help="Whose checkpoint.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="FOLDER",
    help="Where to write; a folder that is new or empty.",
)
@click.option("--plan", is_flag=True, help="Print what would become what, and write nothing.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with an interrupted conversion of the same source and options.",
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
    help="Round to this dtype.  [default: as it is]",
)
@click.option(
    "--legacy",
    is_flag=True,
    help="Older names: before Megatron-core, before MindSpore Transformers 1.5.",
)
@click.option(
    "--like",
    metavar="CHECKPOINT",
    help="Take the names from a checkpoint of the model that is to load it.",
)
@click.option(
    "--model-type",
    "kind",
    metavar="NAME",
    help="Hugging Face: llama, qwen3, mixtral, ...  [default: found]",
)
@click.option(
    "--tp",
    "tensor",
    default=1,
    type=_COUNT,
    show_default=True,
    help="Megatron: tensor-parallel ranks.",
)
@click.option(
    "--pp", "stages", default=1, type=_COUNT, show_default=True, help="Megatron: pipeline stages."
)
@click.option(
    "--transformer-impl",
    type=click.Choice(["local", "transformer_engine"]),
    default="local",
    show_default=True,
    help="Megatron: whose layers, so which names norms and experts have.",
)
@click.option(
    "--true-vocab-size",
    "vocabulary",
    metavar="N",
    type=_COUNT,
    help="Rows of the embedding that are meant.",
)
@click.option(
    "--make-vocab-size-divisible-by",
    "divisible_by",
    default=128,
    type=_COUNT,
    show_default=True,
    help="Megatron: pad the vocabulary to a multiple of this times --tp.",
)
@click.option(
    "--padded-vocab-size", "padded", metavar="N", type=_COUNT, help="Pad the vocabulary to this."
)
@click.option(
    "--heads", metavar="N", type=_COUNT, help="Attention heads.  [default: as the source says]"
)
@click.option(
    "--query-groups", "groups", metavar="N", type=_COUNT, help="Heads of keys and values."
)
@click.option("--experts", metavar="N", type=_COUNT, help="Experts in a stack.")
@click.option(
    "--swiglu/--no-swiglu",
    "gated",
    default=None,
    help="The MLP has a gate.  [default: as shapes say]",
)
@click.option(
    "--bias/--no-bias",
    default=None,
    help="Linear layers have biases, of zeros where the source has none.",
)
@click.option(
    "--from-qkv",
    type=_TURNS,
    help="MindSpore source: q, k, v by query group, or one after the other.",
)
@click.option(
    "--from-gate-up",
    type=_PAIRED,
    help="MindSpore source: gate and up row by row, or one after the other.",
)
@click.option(
    "--qkv",
    type=_TURNS,
    default="grouped",
    show_default=True,
    help="The same of a MindSpore target.",
)
@click.option(
    "--gate-up",
    type=_PAIRED,
    default="interleaved",
    show_default=True,
    help="The same of its gate and up.",
)
@click.option(
    "--rules", metavar="FILE", multiple=True, help="YAML rules to add or override; may be repeated."
)
@click.option(
    "--json", "json_file", metavar="FILE", help="Write plan and result; - for standard output."
)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line alone.")
@click.pass_context
def convert(ctx: click.Context, /, source: str, **options: Any) -> None:
    """Write a checkpoint as another framework has it, and check that it holds the same weights.

    SOURCE is anything that `dumpdiff weights` reads. Names, fused and transposed weights, stacked experts, shards and
    the padding of the vocabulary become those of the target; every element stays as it is, unless --dtype is given.
    """
    folder, plan, json_file = options["folder"], options["plan"], options["json_file"]
    if folder is None and not plan:
        raise click.UsageError("where to? Give -o FOLDER, or --plan to write nothing")
    output.check_writable(json_file)

    from ... import api
    from ...reports.conversion import json, text

    with output.progress() as progress:
        result = api.convert(
            source,
            None if plan else folder,
            _wanted(options),
            _reading(options),
            like=options["like"],
            resume=options["resume"],
            verify=options["verify"],
            rules=options["rules"],
            progress=progress,
        )
    text.write(result, output.console(json_file), quiet=options["quiet"])
    if json_file is not None:
        with output.writing(json_file) as stream:
            json.write(result, stream)
    ctx.exit(1 if result.verified is False else 0)


def _wanted(options: dict[str, Any]) -> Wanted:
    from ...conversion import Wanted

    same = (
        "to",
        "legacy",
        "tensor",
        "stages",
        "divisible_by",
        "padded",
        "qkv",
        "gate_up",
        "bias",
        "dtype",
        "kind",
    )
    engine = options["transformer_impl"] == "transformer_engine"
    return Wanted(transformer_engine=engine, **{name: options[name] for name in same})


def _reading(options: dict[str, Any]) -> Reading:
    from ...conversion import Reading

    same = {name: options[name] for name in ("heads", "groups", "experts", "vocabulary", "gated")}
    return Reading(qkv=options["from_qkv"], gate_up=options["from_gate_up"], **same)
