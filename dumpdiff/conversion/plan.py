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
from ..weight_comparison.whole_model import Side
from . import existing_names, huggingface, megatron, mindspore, model_config, safetensors_writer
from .biases import with_biases, without_biases
from .canonical import Apart, Turns
from .rows import Rows, Tensor
from .target import Target, cut, named

Framework = Literal["megatron", "huggingface", "mindspore"]
_RELEASE = "release"  #: Megatron's name for the weights of no iteration
_LAYER = re.compile(r"^layers\.(\d+)\.")
_VOCABULARY = ("embedding.weight", "head.weight", "head.bias")


@dataclass(frozen=True)
class Wanted:
    """What to convert to; the sizes of parallelism and of the padding are Megatron's."""

    to: Framework
    legacy: bool = False  #: the framework's older names
    tensor: int = 1
    stages: int = 1
    divisible_by: int = 128
    padded: int | None = (
        None  #: rows of the embedding; None: the next multiple of ``divisible_by * tensor``
    )
    transformer_engine: bool = False
    qkv: Turns = "grouped"  #: MindSpore Transformers': as its configuration has it
    gate_up: Turns = "interleaved"
    bias: bool | None = None  #: every linear layer with one, or none; None: as the source
    dtype: str | None = None
    kind: str | None = None  #: Hugging Face's model_type


@dataclass(frozen=True)
class File:
    """A file to write: tensors, or a text."""

    name: str  #: below the output folder
    tensors: tuple[Tensor, ...] = ()
    text: str | None = None
    arguments: Mapping[str, Any] | None = None  #: of a torch file of Megatron; None for safetensors

    @cached_property
    def size(self) -> int:
        """Bytes of its elements."""
        return sum(map(safetensors_writer.size_of, self.tensors))


@dataclass(frozen=True)
class Plan:
    """Files in the order in which they are written."""

    target: str  #: whose names they have
    files: tuple[File, ...]
    left_out: tuple[str, ...]  #: of the source: states of optimizers, counters, tables
    notes: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return sum(file.size for file in self.files)


def plan(model: Apart, wanted: Wanted, example: Side | None = None) -> Plan:
    """What would be written; ``example`` is a checkpoint whose names to use in place of the framework's own.

    Raises DumpError for what the target cannot hold, or cannot be cut so.
    """
    if wanted.bias is not None:
        change = with_biases if wanted.bias else without_biases
        model = replace(model, parameters=change(model.parameters))
        model = replace(
            model, sources={path: model.sources.get(path, "zeros") for path in model.parameters}
        )
    model = _padded(model, wanted)
    if wanted.to == "megatron":
        target = (
            megatron.legacy() if wanted.legacy else megatron.core(model, wanted.transformer_engine)
        )
        made = Plan(
            target.name, tuple(_megatron(model, target, wanted)), model.left_out, model.notes
        )
    else:
        if (wanted.tensor, wanted.stages) != (1, 1):
            raise DumpError(
                f"--tp and --pp are Megatron's; a checkpoint for {wanted.to} is one whole"
            )
        made = _whole(model, wanted, example)
    missing = model_config.unknown(model)
    note = (
        f"the source does not say {', '.join(missing)}: set them for the target" if missing else ""
    )
    return replace(made, notes=(*made.notes, *([note] if note else [])))


def _padded(model: Apart, wanted: Wanted) -> Apart:
    """With as many rows of embedding and head as the target has; the numbers keep how many are meant."""
    rows = _rows(model, wanted)
    if not rows:
        return model
    numbers = replace(model.numbers, vocabulary=model.parameters["embedding.weight"].shape[0])
    found = {
        path: x.resized(rows) if path in _VOCABULARY else x for path, x in model.parameters.items()
    }
    return replace(model, parameters=found, numbers=numbers)


def _rows(model: Apart, wanted: Wanted) -> int:
    """Rows of the embedding to write; 0 if there is none."""
    if "embedding.weight" not in model.parameters:
        return 0
    rows = model.parameters["embedding.weight"].shape[0]
    step = wanted.divisible_by * wanted.tensor if wanted.to == "megatron" else 1
    padded = wanted.padded or -(-rows // step) * step
    if padded < rows or padded % wanted.tensor:
        raise DumpError(
            f"--padded-vocab-size {padded}: must be at least {rows} and a multiple of --tp {wanted.tensor}"
        )
    return padded


def _whole(model: Apart, wanted: Wanted, example: Side | None) -> Plan:
    """Safetensors, and the configuration."""
    kind = wanted.kind or huggingface.kind_of(model)
    if kind not in huggingface.CLASSES:
        raise DumpError(f"--model-type {kind}: expected one of {', '.join(huggingface.CLASSES)}")
    if example is not None:
        target = existing_names.names_of(example, wanted.qkv, wanted.gate_up)
    elif wanted.to == "huggingface":
        target = huggingface.files(kind)
    else:
        target = mindspore.legacy() if wanted.legacy else mindspore.core(wanted.qkv, wanted.gate_up)
    tensors = named(
        model.parameters, model.sources, target, model.numbers.groups or 0, wanted.dtype
    )
    if example is not None:
        existing_names.check(example, tensors)
    shards = safetensors_writer.shards(tensors)
    files = [File(name, tuple(group)) for name, group in shards.items()]
    if len(shards) > 1:
        files.append(File("model.safetensors.index.json", text=safetensors_writer.index(shards)))
    said = model_config.config(model, kind, wanted.dtype)
    notes = model.notes
    if said is None:
        notes = (
            *notes,
            "no config.json was written: nothing says how many heads the model has (--heads N)",
        )
    else:
        files.append(File("config.json", text=json.dumps(said, indent=2) + "\n"))
    return Plan(target.name, tuple(files), model.left_out, notes)


def _megatron(model: Apart, target: Target, wanted: Wanted) -> Iterator[File]:
    """A file for each rank, and the tracker."""
    ranks, stages, layers = wanted.tensor, wanted.stages, model.layers
    groups, heads = model.numbers.groups or 0, model.numbers.heads or 0
    if layers % stages:
        raise DumpError(
            f"--pp {stages}: {layers} layers do not divide into {stages} stages of equal size"
        )
    shared = heads if model.mla else groups
    if ranks > 1 and not shared:
        raise DumpError(
            "--tp: how many heads has the model? Nothing says so: --heads N --query-groups N"
        )
    if shared % ranks:
        raise DumpError(
            f"--tp {ranks}: {shared} {'heads' if model.mla else 'query groups'} do not divide by it"
        )
    padded = (
        model.parameters["embedding.weight"].shape[0]
        if "embedding.weight" in model.parameters
        else 0
    )
    said = model_config.arguments(model, ranks, stages, padded, wanted.transformer_engine)
    for stage in range(stages):
        parameters, sources = _stage(model, stage, stages, layers // stages)
        for rank in range(ranks):
            tensors = named(
                cut(parameters, target, rank, ranks), sources, target, groups // ranks, wanted.dtype
            )
            place = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")
            yield File(f"{_RELEASE}/{place}/model_optim_rng.pt", tuple(tensors), arguments=said)
    yield File(megatron_files.TRACKER, text=_RELEASE)


def _stage(
    model: Apart, stage: int, stages: int, layers: int
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
