"""Slices of a model for the ranks of MindSpore, and the strategy files that describe them.

A rank has slices of the parameters as they are stored, fused or not, because a strategy says along
which axes a parameter is cut and nothing else: mindspore/train/node_strategy.proto. Ranks are
numbered through the stages, and layers through the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..checkpoints.mindspore_ranks import (
    DEVICES,
    FIELD,
    LAYOUT_ITEM,
    LAYOUTS,
    MAP,
    NAME,
    OFFSETS,
    SHARD_SIZE,
    SHARD_STEP,
    SPLIT_SHAPE,
    STAGE,
)
from ..model.errors import DumpError
from ..weight_comparison.shards import COLUMN_PARALLEL, ROW_PARALLEL
from .canonical import CanonicalCheckpoint
from .parallel_ranks import ParallelSizes, Rank, check_sizes, list_stages
from .protobuf_encoding import encode_bytes, encode_integer
from .rows import OutputTensor

_LAYER = re.compile(r"^layers\.(\d+)\.")
_EXPERTS = re.compile(r"\.mlp\.experts\.")
_DIMENSION = 1  #: field of the lists of numbers in a layout


@dataclass(frozen=True)
class Slice:
    """A rank's slice of a tensor; ``axis`` is that along which it is cut, None for a whole one."""

    tensor: OutputTensor
    axis: int | None


@dataclass(frozen=True)
class StageSlices:
    """The slices of the ranks of a stage, the first of which has number ``first_rank``."""

    number: int
    first_rank: int
    ranks: tuple[tuple[Slice, ...], ...]


def check_mindspore_sizes(model: CanonicalCheckpoint, sizes: ParallelSizes) -> None:
    """Raise DumpError if a model is not split so for MindSpore."""
    if sizes.virtual > 1 or sizes.expert > 1 or sizes.expert_tensor is not None:
        raise DumpError(
            "--vpp, --ep and --etp are Megatron's; --to mindspore has --tp, which also splits the"
            " experts, and --pp"
        )
    check_sizes(model, sizes)


def slice_tensors(
    model: CanonicalCheckpoint, tensors: Sequence[OutputTensor], sizes: ParallelSizes
) -> list[StageSlices]:
    """Return the slices of every rank, by stage.

    Raises DumpError if a length does not divide by the number of ranks.
    """
    paths = {tensor.name: model.rules.resolve_parameter(tensor.name) for tensor in tensors}
    stages = []
    for number in range(sizes.pipeline):
        (stage,) = list_stages(model.n_layers, Rank(0, number, 0, 0), sizes)
        layers = range(stage.first_layer, stage.first_layer + stage.n_layers)
        is_tied = "head.weight" not in model.parameters
        ranks = [
            tuple(
                _slice_tensor(tensor, paths[tensor.name] or "", rank, sizes.tensor, model.has_mla)
                for tensor in tensors
                if _is_on_stage(
                    paths[tensor.name] or "", layers, number, sizes.pipeline, is_tied=is_tied
                )
            )
            for rank in range(sizes.tensor)
        ]
        stages.append(StageSlices(number, number * sizes.tensor, tuple(ranks)))
    return stages


def _is_on_stage(path: str, layers: range, stage: int, n_stages: int, *, is_tied: bool) -> bool:
    """Return whether a stage has a parameter; the last needs an embedding that is the head."""
    match = _LAYER.match(path)
    if match is not None:
        return int(match[1]) in layers
    is_last = stage == n_stages - 1
    if "embedding" not in path:
        return is_last
    return stage == 0 or (is_last and is_tied and path == "embedding.weight")


def _slice_tensor(tensor: OutputTensor, path: str, rank: int, n_ranks: int, has_mla: bool) -> Slice:
    axis = None if n_ranks == 1 else _find_axis(path, has_mla)
    if axis is None:
        return Slice(tensor, None)
    is_stack = len(tensor.parts) > 1
    length = len(tensor.parts) if is_stack else tensor.shape[axis]
    if length % n_ranks:
        what = "experts" if is_stack else "its length"
        raise DumpError(f"{tensor.name}: {what} {length} does not divide by --tp {n_ranks}")
    shape = list(tensor.shape)
    shape[axis] //= n_ranks
    parts = tensor.parts
    if is_stack:
        size = length // n_ranks
        parts = parts[rank * size : (rank + 1) * size]
    else:
        parts = (parts[0].take_share(axis, rank, n_ranks),)
    return Slice(replace(tensor, shape=tuple(shape), parts=parts), axis)


def _find_axis(path: str, has_mla: bool) -> int | None:
    """Return the axis along which a parameter is cut: for stacked experts that of the experts."""
    module, _, leaf = path.rpartition(".")
    module = module.rpartition(".")[2]
    if _EXPERTS.search(path):
        return 0
    if module == "qkv" and has_mla:
        return None  # down projections, which every rank has
    if module in COLUMN_PARALLEL:
        return 0
    return 1 if module in ROW_PARALLEL and leaf == "weight" else None


def build_strategy(stages: Sequence[StageSlices]) -> bytes:
    """Return the strategy file of all stages: how each of their parameters is cut.

    It is as MindSpore merges those of several stages: names begin with the stage's number.
    """
    message = encode_integer(STAGE, int(len(stages) > 1))
    for stage in stages:
        prefix = f"{stage.number}-" if len(stages) > 1 else ""
        for part in stage.ranks[0]:
            item = encode_bytes(NAME, f"{prefix}{part.tensor.name}".encode())
            item += encode_bytes(LAYOUTS, _encode_layout(part, len(stage.ranks)))
            message += encode_bytes(LAYOUT_ITEM, item)
    return message


def _encode_layout(part: Slice, n_ranks: int) -> bytes:
    axes = [0 if axis == part.axis else -1 for axis in range(len(part.tensor.shape))]
    layout = encode_bytes(DEVICES, _encode_list([n_ranks]))
    layout += encode_bytes(MAP, _encode_list(axes))
    layout += encode_bytes(SPLIT_SHAPE, _encode_list(part.tensor.shape))
    layout += encode_bytes(OFFSETS, b"")
    for field in (FIELD, SHARD_STEP, SHARD_SIZE):
        layout += encode_integer(field, 0)
    return layout


def _encode_list(numbers: Iterable[int]) -> bytes:
    return b"".join(encode_integer(_DIMENSION, number) for number in numbers)
