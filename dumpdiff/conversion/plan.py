"""The plan of a conversion: the files to write and their tensors. No element is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..checkpoints.elements import RAW_DTYPES, decode
from ..checkpoints.megatron import TRACKER
from ..checkpoints.torch_dist import METADATA
from ..model.errors import DumpError
from ..rulebook import ModelFamily
from ..weight_comparison.matrix import Matrix
from ..weight_comparison.whole_model import WholeModel
from . import (
    existing_names,
    huggingface,
    megatron,
    mindspore,
    mindspore_ranks,
    mindspore_writer,
    model_config,
    safetensors_writer,
    torch_dist_writer,
)
from .architecture import check_biases, check_layers, check_target
from .canonical import CanonicalCheckpoint, FusionLayout
from .parallel_ranks import (
    ParallelSizes,
    build_folder_name,
    check_sizes,
    list_ranks,
    list_stages,
    select_experts,
    select_stage,
)
from .rows import OutputTensor, Rows
from .target_layout import TargetLayout, build_tensors, shard_parameters

Framework = Literal["megatron", "huggingface", "mindspore"]
_RELEASE = "release"  #: Megatron's name of the folder for weights that belong to no iteration
_STRATEGY_NAME = "strategy/ckpt_strategy.ckpt"  #: how the ranks of MindSpore are split
#: Parameters with one row per token of the vocabulary, which are padded.
_VOCABULARY_PARAMETERS = ("embedding.weight", "head.weight", "head.bias")
#: Modules that ``--bias`` and ``--no-bias`` are about: the linear layers of attention and MLP.
_LINEAR_MODULES = frozenset(
    {"q", "k", "v", "out", "gate_proj", "up_proj", "gate_up_proj", "down_proj"}
)


@dataclass(frozen=True)
class TargetOptions:
    """What to convert to. Padding, and most sizes of parallelism, apply to Megatron only."""

    framework: Framework
    legacy: bool = False  #: the framework's older names
    sizes: ParallelSizes = field(default_factory=ParallelSizes)
    divisible_by: int = 128
    #: Rows of the embedding; None: the next multiple of ``divisible_by * sizes.tensor``.
    padded_vocabulary: int | None = None
    transformer_engine: bool = False
    qkv: FusionLayout = "grouped"  #: of MindSpore Transformers, as its configuration states it
    gate_up: FusionLayout = "interleaved"  #: likewise
    bias: bool | None = None  #: every linear layer with a bias, or none; None: as in the source
    dtype: str | None = None
    model_type: str | None = None  #: Hugging Face's model_type
    #: Of MindSpore's files: ``ckpt`` instead of safetensors.
    is_ckpt: bool = False
    #: Of Megatron's files: a distributed checkpoint instead of one file for each rank.
    is_distributed: bool = False


@dataclass(frozen=True)
class File:
    """A file to write: tensors, or a text or message."""

    name: str  #: relative to the output folder
    #: Tensors; of each virtual stage on a rank of Megatron, else all in one.
    chunks: tuple[tuple[OutputTensor, ...], ...] = ()
    text: str | bytes | None = None
    arguments: Mapping[str, Any] | None = None  #: of a torch file of Megatron; None for safetensors

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """The tensors of all chunks."""
        return tuple(tensor for chunk in self.chunks for tensor in chunk)

    @cached_property
    def size(self) -> int:
        """Bytes of the elements of all tensors."""
        return sum(map(safetensors_writer.compute_size, self.tensors))


@dataclass(frozen=True)
class Plan:
    """Files in the order in which they are written."""

    target: str  #: name of the layout
    files: tuple[File, ...]
    skipped: tuple[str, ...]  #: tensors of the source that are no weights
    notes: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return sum(file.size for file in self.files)


def build_plan(
    model: CanonicalCheckpoint, options: TargetOptions, example: WholeModel | None = None
) -> Plan:
    """Return what would be written, with the names of ``example`` if there is one.

    Raises DumpError for a parameter or a split that the target cannot have.
    """
    check_layers(model)
    if options.is_ckpt and options.framework != "mindspore":
        raise DumpError(f"--ckpt: only MindSpore has such files, not {options.framework}")
    if options.is_distributed:
        _check_distributed(options)
    if options.bias is not None:
        change_biases = _add_zero_biases if options.bias else _drop_zero_biases
        parameters = change_biases(model.parameters)
        sources = {path: model.sources.get(path, "zeros") for path in parameters}
        model = replace(model, parameters=parameters, sources=sources)
    model = _pad_vocabulary(model, options)
    if options.framework == "megatron":
        check_biases(model)
        plan = _plan_megatron(model, options)
    elif options.sizes != ParallelSizes() and options.framework == "huggingface":
        raise DumpError(
            "--tp, --pp, --vpp, --ep, --etp and --stage-layers: a checkpoint for huggingface is not"
            " split"
        )
    else:
        plan = _plan_safetensors(model, options, example)
    notes = list(plan.notes)
    unknown_settings = model_config.list_unknown_settings(model)
    if unknown_settings:
        notes.append(
            f"the source does not state {', '.join(unknown_settings)}: set them for the target"
        )
    if options.framework == "megatron":
        lost_settings = model_config.list_lost_settings(model)
        if lost_settings:
            notes.append(
                f"Megatron's arguments have no place for {', '.join(lost_settings)}: see to it that"
                " the target computes them"
            )
    return replace(plan, notes=tuple(notes))


def _check_distributed(options: TargetOptions) -> None:
    """Raise DumpError if a distributed checkpoint cannot be what the options say."""
    if options.framework != "megatron" or options.legacy:
        raise DumpError("--ckpt-format torch_dist: only Megatron-core has such files")
    if options.sizes != ParallelSizes():
        raise DumpError(
            "--ckpt-format torch_dist: its tensors are whole, and the run that loads them splits"
            " them; leave out --tp, --pp, --vpp, --ep, --etp and --stage-layers"
        )


def _add_zero_biases(parameters: Mapping[str, Rows]) -> dict[str, Rows]:
    """Add a bias of zeros to every linear layer of attention and MLP that has none."""
    result = dict(parameters)
    for path, rows in parameters.items():
        stem, _, leaf = path.rpartition(".")
        is_linear = leaf == "weight" and stem.split(".")[-1] in _LINEAR_MODULES
        if is_linear and f"{stem}.bias" not in result:
            zero = Matrix.from_array(np.zeros(1, RAW_DTYPES[rows.dtype]), rows.dtype)
            result[f"{stem}.bias"] = Rows(zero, np.full(rows.shape[0], -1), vector=True)
    return result


def _drop_zero_biases(parameters: Mapping[str, Rows]) -> dict[str, Rows]:
    """Remove the biases of all linear layers. Raises DumpError if one is not zero."""
    result = {}
    for path, rows in parameters.items():
        stem, _, leaf = path.rpartition(".")
        if leaf != "bias" or stem.split(".")[-1] not in _LINEAR_MODULES:
            result[path] = rows
        elif any(decode(chunk, rows.dtype).any() for chunk in rows.read_chunks()):
            raise DumpError(f"--no-bias: {path} is not zero, so the model needs it")
    return result


def _pad_vocabulary(model: CanonicalCheckpoint, options: TargetOptions) -> CanonicalCheckpoint:
    """Pad embedding and head to the target's rows; the configuration keeps the true size."""
    if "embedding.weight" not in model.parameters:
        return model
    vocabulary = model.parameters["embedding.weight"].shape[0]
    padded = _compute_padded_size(vocabulary, options)
    parameters = dict(model.parameters)
    for path in _VOCABULARY_PARAMETERS:
        if path in parameters:
            parameters[path] = parameters[path].resize(padded)
    config = replace(model.config, vocabulary=vocabulary)
    return replace(model, parameters=parameters, config=config)


def _compute_padded_size(vocabulary: int, options: TargetOptions) -> int:
    """Return the rows of the embedding to write. Raises DumpError for impossible options."""
    step = options.divisible_by * options.sizes.tensor if options.framework == "megatron" else 1
    padded = options.padded_vocabulary or -(-vocabulary // step) * step
    if options.padded_vocabulary is None and padded % options.sizes.tensor:
        raise DumpError(
            f"--tp {options.sizes.tensor}: {padded} rows of the vocabulary do not divide by it; pad"
            " them with --padded-vocab-size"
        )
    if padded < vocabulary or padded % options.sizes.tensor:
        raise DumpError(
            f"--padded-vocab-size {padded}: must be at least {vocabulary} and a multiple of "
            f"--tp {options.sizes.tensor}"
        )
    return padded


def _plan_safetensors(
    model: CanonicalCheckpoint, options: TargetOptions, example: WholeModel | None
) -> Plan:
    """Plan files of weights and config.json, for Hugging Face and MindSpore."""
    model_type = options.model_type or huggingface.detect_model_type(model)
    family = huggingface.find_family(model, model_type)
    check_target(model, family, model_type)
    if options.framework == "huggingface" and example is None:
        model = huggingface.add_prediction_copies(model)
    target = _choose_layout(model, family, model_type, options, example)
    groups = model.config.groups or 0
    tensors = build_tensors(model.parameters, model.sources, target, groups, options.dtype)
    if example is not None:
        existing_names.check_against_example(example, tensors)
    if options.sizes != ParallelSizes():
        files = _plan_mindspore_ranks(model, tensors, options)
    elif options.is_ckpt:
        files = [File(f"model{mindspore_writer.SUFFIX}", (tuple(tensors),))]
    else:
        files = _plan_whole_files(tensors)
    notes = model.notes
    config = model_config.build_config(model, family, model_type, options.dtype)
    if config is None:
        note = "no config.json was written, because the number of heads is unknown (--heads N)"
        notes = (*notes, note)
    else:
        files.append(File("config.json", text=json.dumps(config, indent=2) + "\n"))
    return Plan(target.name, tuple(files), model.skipped, notes)


def _plan_whole_files(tensors: Sequence[OutputTensor]) -> list[File]:
    """Plan safetensors, with an index if there are several files."""
    tensors_by_file = safetensors_writer.split_into_files(tensors)
    files = [File(name, (tuple(content),)) for name, content in tensors_by_file.items()]
    if len(files) > 1:
        index = safetensors_writer.build_index(tensors_by_file)
        files.append(File("model.safetensors.index.json", text=index))
    return files


def _plan_mindspore_ranks(
    model: CanonicalCheckpoint, tensors: Sequence[OutputTensor], options: TargetOptions
) -> list[File]:
    """Plan a file for each rank of MindSpore, and their strategy file."""
    mindspore_ranks.check_mindspore_sizes(model, options.sizes)
    suffix = mindspore_writer.SUFFIX if options.is_ckpt else ".safetensors"
    stages = mindspore_ranks.slice_tensors(model, tensors, options.sizes)
    files = []
    for stage in stages:
        for number, slices in enumerate(stage.ranks, start=stage.first_rank):
            name = f"rank_{number}/model{number}{suffix}"
            files.append(File(name, (tuple(part.tensor for part in slices),)))
    files.append(File(_STRATEGY_NAME, text=mindspore_ranks.build_strategy(stages)))
    return files


def _choose_layout(
    model: CanonicalCheckpoint,
    family: ModelFamily,
    model_type: str,
    options: TargetOptions,
    example: WholeModel | None,
) -> TargetLayout:
    if example is not None:
        return existing_names.build_layout(example, options.qkv, options.gate_up)
    if options.framework == "huggingface":
        return huggingface.build_layout(family, model_type, model.n_layers)
    if options.legacy:
        return mindspore.build_legacy_layout()
    return mindspore.build_core_layout(options.qkv, options.gate_up)


def _plan_megatron(model: CanonicalCheckpoint, options: TargetOptions) -> Plan:
    """Plan a file for each rank, and the tracker."""
    if options.is_distributed:
        return _plan_distributed(model, options)
    if options.legacy:
        target = megatron.build_legacy_layout()
    else:
        target = megatron.build_core_layout(model, options.transformer_engine)
    files = (*_plan_ranks(model, target, options), File(TRACKER, text=_RELEASE))
    return Plan(target.name, files, model.skipped, model.notes)


def _plan_distributed(model: CanonicalCheckpoint, options: TargetOptions) -> Plan:
    """Plan a distributed checkpoint of Megatron-core, and the tracker."""
    target = megatron.build_distributed_layout(model, options.transformer_engine)
    groups = model.config.groups or 0
    tensors = build_tensors(model.parameters, model.sources, target, groups, options.dtype)
    arguments = model_config.build_arguments(
        model, options.sizes, _count_embedding_rows(model), options.transformer_engine
    )
    files = (
        File(f"{_RELEASE}/{METADATA}", (tuple(tensors),)),
        File(f"{_RELEASE}/{torch_dist_writer.COMMON_NAME}", arguments=arguments),
        File(f"{_RELEASE}/{torch_dist_writer.CONFIG_NAME}", text=torch_dist_writer.CONFIG),
        File(TRACKER, text=_RELEASE),
    )
    return Plan(f"{target.name}, torch_dist", files, model.skipped, model.notes)


def _plan_ranks(
    model: CanonicalCheckpoint, target: TargetLayout, options: TargetOptions
) -> Iterator[File]:
    sizes = options.sizes
    check_sizes(model, sizes)
    arguments = model_config.build_arguments(
        model, sizes, _count_embedding_rows(model), options.transformer_engine
    )
    groups = (model.config.groups or 0) // sizes.tensor
    for rank in list_ranks(sizes):
        chunks = []
        for stage in list_stages(model.n_layers, rank, sizes):
            selection = select_stage(model, stage, sizes.stages == 1)
            parameters, sources = select_experts(*selection, rank, sizes)
            shard = shard_parameters(parameters, target, rank, sizes)
            chunks.append(tuple(build_tensors(shard, sources, target, groups, options.dtype)))
        name = f"{_RELEASE}/{build_folder_name(rank, sizes)}/model_optim_rng.pt"
        yield File(name, tuple(chunks), arguments=arguments)


def _count_embedding_rows(model: CanonicalCheckpoint) -> int:
    embedding = model.parameters.get("embedding.weight")
    return 0 if embedding is None else embedding.shape[0]
