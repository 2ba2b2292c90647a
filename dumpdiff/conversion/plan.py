"""What a conversion will write, before anything is read: files, the tensors in each, and what is taken for granted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ..checkpoints import megatron as megatron_files
from ..model.errors import DumpError
from ..weight_comparison.whole_model import WholeModel
from . import existing_names, huggingface, megatron, mindspore, model_config, safetensors_writer
from .biases import add_zero_biases, drop_zero_biases
from .canonical import CanonicalCheckpoint, FusionLayout
from .rows import Rows, OutputTensor
from .target_layout import TargetLayout, shard_parameters, build_tensors

Framework = Literal["megatron", "huggingface", "mindspore"]
_RELEASE = "release"  #: Megatron's name for the weights of no iteration
_LAYER = re.compile(r"^layers\.(\d+)\.")
_VOCABULARY = ("embedding.weight", "head.weight", "head.bias")


@dataclass(frozen=True)
class TargetOptions:
    """What to convert to; the sizes of parallelism and of the padding are Megatron's."""

    framework: Framework
    legacy: bool = False  #: the framework's older names
    tensor: int = 1
    stages: int = 1
    divisible_by: int = 128
    padded_vocabulary: int | None = (
        None  #: rows of the embedding; None: the next multiple of ``divisible_by * tensor``
    )
    transformer_engine: bool = False
    qkv: FusionLayout = "grouped"  #: MindSpore Transformers': as its configuration has it
    gate_up: FusionLayout = "interleaved"
    bias: bool | None = None  #: every linear layer with one, or none; None: as the source
    dtype: str | None = None
    model_type: str | None = None  #: Hugging Face's model_type


@dataclass(frozen=True)
class File:
    """A file to write: tensors, or a text."""

    name: str  #: below the output folder
    tensors: tuple[OutputTensor, ...] = ()
    text: str | None = None
    arguments: Mapping[str, Any] | None = None  #: of a torch file of Megatron; None for safetensors

    @cached_property
    def size(self) -> int:
        """Bytes of its elements."""
        return sum(map(safetensors_writer.compute_size, self.tensors))


@dataclass(frozen=True)
class Plan:
    """Files in the order in which they are written."""

    target: str  #: whose names they have
    files: tuple[File, ...]
    skipped: tuple[str, ...]  #: of the source: states of optimizers, counters, tables
    notes: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return sum(file.size for file in self.files)


def build_plan(model: CanonicalCheckpoint, wanted: TargetOptions, example: WholeModel | None = None) -> Plan:
    """What would be written; ``example`` is a checkpoint whose names to use in place of the framework's own.

    Raises DumpError for what the target cannot hold, or cannot be cut so.
    """
    if wanted.bias is not None:
        change = add_zero_biases if wanted.bias else drop_zero_biases
        model = replace(model, parameters=change(model.parameters))
        model = replace(
            model, sources={path: model.sources.get(path, "zeros") for path in model.parameters}
        )
    model = _padded(model, wanted)
    if wanted.framework == "megatron":
        target = (
            megatron.build_legacy_layout() if wanted.legacy else megatron.build_core_layout(model, wanted.transformer_engine)
        )
        made = Plan(
            target.name, tuple(_megatron(model, target, wanted)), model.skipped, model.notes
        )
    else:
        if (wanted.tensor, wanted.stages) != (1, 1):
            raise DumpError(
                f"--tp and --pp are Megatron's; a checkpoint for {wanted.framework} is one whole"
            )
        made = _whole(model, wanted, example)
    missing = model_config.list_unknown_settings(model)
    note = (
        f"the source does not say {', '.join(missing)}: set them for the target" if missing else ""
    )
    return replace(made, notes=(*made.notes, *([note] if note else [])))


def _padded(model: CanonicalCheckpoint, wanted: TargetOptions) -> CanonicalCheckpoint:
    """With as many rows of embedding and head as the target has; the numbers keep how many are meant."""
    rows = _rows(model, wanted)
    if not rows:
        return model
    numbers = replace(model.numbers, vocabulary=model.parameters["embedding.weight"].shape[0])
    found = {
        path: x.resize(rows) if path in _VOCABULARY else x for path, x in model.parameters.items()
    }
    return replace(model, parameters=found, numbers=numbers)


def _rows(model: CanonicalCheckpoint, wanted: TargetOptions) -> int:
    """Rows of the embedding to write; 0 if there is none."""
    if "embedding.weight" not in model.parameters:
        return 0
    rows = model.parameters["embedding.weight"].shape[0]
    step = wanted.divisible_by * wanted.tensor if wanted.framework == "megatron" else 1
    padded = wanted.padded_vocabulary or -(-rows // step) * step
    if padded < rows or padded % wanted.tensor:
        raise DumpError(
            f"--padded-vocab-size {padded}: must be at least {rows} and a multiple of --tp {wanted.tensor}"
        )
    return padded


def _whole(model: CanonicalCheckpoint, wanted: TargetOptions, example: WholeModel | None) -> Plan:
    """Safetensors, and the configuration."""
    kind = wanted.model_type or huggingface.detect_model_type(model)
    if kind not in huggingface.CLASSES:
        raise DumpError(f"--model-type {kind}: expected one of {', '.join(huggingface.CLASSES)}")
    if example is not None:
        target = existing_names.build_layout(example, wanted.qkv, wanted.gate_up)
    elif wanted.framework == "huggingface":
        target = huggingface.build_layout(kind)
    else:
        target = mindspore.build_legacy_layout() if wanted.legacy else mindspore.build_core_layout(wanted.qkv, wanted.gate_up)
    tensors = build_tensors(
        model.parameters, model.sources, target, model.numbers.groups or 0, wanted.dtype
    )
    if example is not None:
        existing_names.check_against_example(example, tensors)
    shards = safetensors_writer.split_into_files(tensors)
    files = [File(name, tuple(group)) for name, group in shards.items()]
    if len(shards) > 1:
        files.append(File("model.safetensors.index.json", text=safetensors_writer.build_index(shards)))
    said = model_config.build_config(model, kind, wanted.dtype)
    notes = model.notes
    if said is None:
        notes = (
            *notes,
            "no config.json was written: nothing says how many heads the model has (--heads N)",
        )
    else:
        files.append(File("config.json", text=json.dumps(said, indent=2) + "\n"))
    return Plan(target.name, tuple(files), model.skipped, notes)


def _megatron(model: CanonicalCheckpoint, target: TargetLayout, wanted: TargetOptions) -> Iterator[File]:
    """A file for each rank, and the tracker."""
    ranks, stages, layers = wanted.tensor, wanted.stages, model.n_layers
    groups, heads = model.numbers.groups or 0, model.numbers.heads or 0
    if layers % stages:
        raise DumpError(
            f"--pp {stages}: {layers} layers do not divide into {stages} stages of equal size"
        )
    shared = heads if model.has_mla else groups
    if ranks > 1 and not shared:
        raise DumpError(
            "--tp: how many heads has the model? Nothing says so: --heads N --query-groups N"
        )
    if shared % ranks:
        raise DumpError(
            f"--tp {ranks}: {shared} {'heads' if model.has_mla else 'query groups'} do not divide by it"
        )
    padded = (
        model.parameters["embedding.weight"].shape[0]
        if "embedding.weight" in model.parameters
        else 0
    )
    said = model_config.build_arguments(model, ranks, stages, padded, wanted.transformer_engine)
    for stage in range(stages):
        parameters, sources = _stage(model, stage, stages, layers // stages)
        for rank in range(ranks):
            tensors = build_tensors(
                shard_parameters(parameters, target, rank, ranks), sources, target, groups // ranks, wanted.dtype
            )
            place = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")
            yield File(f"{_RELEASE}/{place}/model_optim_rng.pt", tuple(tensors), arguments=said)
    yield File(megatron_files.TRACKER, text=_RELEASE)


def _stage(
    model: CanonicalCheckpoint, stage: int, stages: int, layers: int
) -> tuple[dict[str, Rows], dict[str, str]]:
    """Parameters and their sources of one pipeline stage, its layers numbered from 0."""
    parameters, sources = {}, {}
    for path, rows in model.parameters.items():
        own = path
        if (matched := _LAYER.match(path)) is not None:
            place, local = divmod(int(matched[1]), layers)
            own = _LAYER.sub(f"layers.{local}.", path)
        else:
            place = 0 if "embedding" in path else stages - 1
        if place == stage:
            parameters[own], sources[own] = rows, model.sources[path]
    if (
        stages > 1 and stage == stages - 1 and "head.weight" not in parameters
    ):  # tied: the last stage has a copy
        parameters["head.weight"] = model.parameters["embedding.weight"]
        sources["head.weight"] = model.sources["embedding.weight"]
    return parameters, sources
