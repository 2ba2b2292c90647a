"""Commands on checkpoints: ``dumpdiff.weights.compare`` and ``dumpdiff.weights.convert``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.errors import DumpError
from ..rulebook import load_rules
from .inputs import PathLike
from .progress import Progress

if TYPE_CHECKING:
    from ..checkpoints import Checkpoint
    from ..conversion import ConversionResult, TargetOptions
    from ..conversion.canonical import FusionLayout
    from ..conversion.plan import Framework
    from ..weight_comparison import WeightsResult

__all__ = ["compare", "convert"]


def compare(
    target: PathLike,
    reference: PathLike,
    *,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> WeightsResult:
    """Return whether two checkpoints hold the same weights, and what is wrong if they differ.

    Memory stays within a few hundred megabytes, whatever the size of the checkpoints.

    Parameters
    ----------
    target, reference
        Checkpoint under test, and the trusted one: any two formats, layouts and splits.
    rules
        Rule files in addition to the shipped rules.

    Raises
    ------
    DumpError
        If a checkpoint cannot be read.
    RuleError
        If a rule file is wrong.
    """
    from .. import weight_comparison

    book = load_rules([Path(file) for file in rules])
    opened = (_open_checkpoint(target), _open_checkpoint(reference))
    return weight_comparison.compare(*opened, book, progress)


def convert(
    source: PathLike,
    to: Framework,
    output: PathLike | None = None,
    *,
    huggingface_output: PathLike | None = None,
    plan: bool = False,
    resume: bool = False,
    verify: bool = True,
    dtype: str | None = None,
    legacy: bool = False,
    ckpt: bool = False,
    ckpt_format: str = "torch",
    like: PathLike | None = None,
    model_type: str | None = None,
    tp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    stage_layers: Sequence[int] = (),
    transformer_impl: str = "local",
    true_vocab_size: int | None = None,
    make_vocab_size_divisible_by: int = 128,
    padded_vocab_size: int | None = None,
    heads: int | None = None,
    query_groups: int | None = None,
    experts: int | None = None,
    swiglu: bool | None = None,
    bias: bool | None = None,
    normalization: str | None = None,
    position_embedding_type: str | None = None,
    max_position_embeddings: int | None = None,
    rotary_base: float | None = None,
    norm_epsilon: float | None = None,
    from_qkv: FusionLayout | None = None,
    from_gate_up: FusionLayout | None = None,
    qkv: FusionLayout = "grouped",
    gate_up: FusionLayout = "interleaved",
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> ConversionResult:
    """Write a checkpoint as another framework has it, and compare what was written with the source.

    Parameters
    ----------
    source
        Anything that :func:`compare` reads.
    to
        ``megatron``, ``huggingface`` or ``mindspore``.
    output
        Folder to write, new or empty.
    huggingface_output
        Second folder, for the same weights as files of Hugging Face transformers.
    plan
        Return what would become what, and write nothing.
    resume
        Continue an interrupted conversion of the same source with the same options.
    verify
        Compare the written checkpoint with the source.
    dtype
        Round to ``float32``, ``float16`` or ``bfloat16``; default: keep each dtype.
    legacy
        Use the older names: before Megatron-core, before MindSpore Transformers 1.5.
    ckpt
        MindSpore: ``.ckpt`` instead of safetensors.
    ckpt_format
        Megatron: ``torch`` for a file of each rank, ``torch_dist`` for a distributed checkpoint,
        which ranks of any layout load.
    like
        Checkpoint whose names are used.
    model_type
        Hugging Face model type; default: derived from the source.
    tp, pp, vpp, ep, etp
        Megatron: ranks of tensor and pipeline parallelism, virtual stages on each pipeline rank,
        ranks of expert parallelism, ranks that share an expert (default: ``tp``). MindSpore: ``tp``
        and ``pp``.
    stage_layers
        Megatron, MindSpore: layers of each stage, if they have different numbers; ``pp * vpp``
        numbers.
    transformer_impl
        Megatron: ``local`` or ``transformer_engine`` layers, which name norms and experts
        differently.
    true_vocab_size
        Rows of the source's embedding without padding.
    make_vocab_size_divisible_by, padded_vocab_size
        Megatron: padding of the vocabulary.
    heads, query_groups, experts, swiglu
        Numbers of the model that the source does not state.
    bias
        Whether linear layers have biases (zeros where the source has none); default: as in the
        source.
    normalization, position_embedding_type
        ``RMSNorm`` or ``LayerNorm``, ``rope`` or ``learned_absolute``, checked by the weights.
    max_position_embeddings, rotary_base, norm_epsilon
        Numbers of the configuration, for a source that does not state them.
    from_qkv, from_gate_up
        MindSpore source: order of fused rows.
    qkv, gate_up
        MindSpore target: order of fused rows.
    rules
        Rule files in addition to the shipped rules.

    Raises
    ------
    DumpError
        If something cannot be read, converted or written.
    RuleError
        If a rule file is wrong.
    """
    from .. import conversion
    from ..conversion import ParallelSizes, SourceOptions, TargetOptions, plan_conversion

    book = load_rules([Path(file) for file in rules])
    opened = _open_checkpoint(source)
    example = None if like is None else _open_checkpoint(like)
    stated_numbers = {
        "positions": max_position_embeddings,
        "rope_theta": rotary_base,
        "norm_epsilon": norm_epsilon,
    }
    source_options = SourceOptions(
        heads=heads,
        groups=query_groups,
        experts=experts,
        vocabulary=true_vocab_size,
        qkv=from_qkv,
        gate_up=from_gate_up,
        gated=swiglu,
        norm=normalization,
        position_embedding=position_embedding_type,
        facts={fact: number for fact, number in stated_numbers.items() if number is not None},
    )
    target_options = TargetOptions(
        framework=to,
        legacy=legacy,
        sizes=ParallelSizes(tp, pp, vpp, ep, etp, tuple(stage_layers)),
        divisible_by=make_vocab_size_divisible_by,
        padded_vocabulary=padded_vocab_size,
        transformer_engine=transformer_impl == "transformer_engine",
        qkv=qkv,
        gate_up=gate_up,
        bias=bias,
        dtype=dtype,
        model_type=model_type,
        is_ckpt=ckpt,
        is_distributed=ckpt_format == "torch_dist",
    )
    results = [plan_conversion(opened, source_options, target_options, book, example)]
    folders = [output]
    if huggingface_output is not None:
        further_options = _build_further_options(target_options)
        results.append(plan_conversion(opened, source_options, further_options, book))
        folders.append(huggingface_output)
    if not plan and output is not None:
        paths = [Path(folder) for folder in folders if folder is not None]
        for path in paths:
            conversion.check_folder_is_free(path, resume)
        results = [
            conversion.write_conversion(
                planned, opened, path, book, resume=resume, verify=verify, progress=progress
            )
            for planned, path in zip(results, paths, strict=True)
        ]
    return replace(results[0], huggingface=results[1] if len(results) > 1 else None)


def _build_further_options(options: TargetOptions) -> TargetOptions:
    """Return the options that write the same weights for transformers.

    Raises DumpError if they are written for transformers already.
    """
    from ..conversion import ParallelSizes

    if options.framework == "huggingface":
        raise DumpError("--huggingface-output: --to huggingface writes these files already")
    return replace(
        options,
        framework="huggingface",
        legacy=False,
        is_ckpt=False,
        is_distributed=False,
        sizes=ParallelSizes(),
        padded_vocabulary=None,
    )


def _open_checkpoint(path: PathLike) -> Checkpoint:
    """Return the checkpoint at ``path``. Raises DumpError, which says if it is a dump instead."""
    from .. import checkpoints, readers

    try:
        return checkpoints.open(path)
    except DumpError as error:
        try:
            readers.find_parts(path)
        except DumpError:
            raise error from None
    raise DumpError(f"{path}: is a dump, not a checkpoint; compare dumps with dumpdiff align")
