"""Join the shards of a parallel run: undo tensor, pipeline and expert parallelism.

Megatron-core splits the rows of column-parallel layers and the columns of row-parallel ones,
numbers layers within a pipeline stage and experts within a rank
(megatron/core/tensor_parallel/layers.py, transformer_layer.py, moe_layer.py). If a checkpoint
records which slice an entry is (``Entry.window``), the record is used instead.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from ..checkpoints import Checkpoint, Entry, Rank
from ..checkpoints.megatron import FORMAT
from ..model.arrays import AnyArray
from ..model.trace import Problem
from ..rulebook import Rules
from .families import find_model_family, read_model_config, read_naming
from .grouped_experts import get_sibling_name, is_grouped_weight, split_experts
from .mamba_shards import compute_part_sizes, is_output_projection
from .matrix import Matrix, concatenate_columns, concatenate_rows
from .whole_model import Tensor, WholeModel, are_identical, make_unsplit_tensor

#: Last module of the canonical names of column-parallel layers: tensor parallelism splits rows and
#: bias.
COLUMN_PARALLEL = frozenset({
    "qkv", "q", "k", "v", "gate_up_proj", "gate_proj", "up_proj", "q_b", "kv_b", "q_b_nope",
    "q_b_rope", "kv_b_k", "kv_b_v", "embedding", "head", "eh_proj",
})  # fmt: skip
#: Last module of the canonical names of row-parallel layers: tensor parallelism splits columns.
ROW_PARALLEL = frozenset({"out", "down_proj"})
#: Last part of the canonical name of attention sinks, one for each head: split with the heads.
SINKS = "sinks"
#: Down projections of MLA: the local spec of Megatron-core splits their rows, Transformer Engine
#: does not.
_MAYBE_SPLIT = ("q_a", "kv_a")
_LAYER = re.compile(r"(?<![\w])(layers|layer|blocks|h)\.(\d+)(?=\.)")
_EXPERT = re.compile(r"(local_experts\.|linear_fc[12]\.(?:weight|bias))(\d+)")
_PREDICTION_LAYER = re.compile(r"^(?:model\.)?layers\.(\d+)\.eh_proj\.weight$")
_MTP = re.compile(r"(^|\.)mtp\.")


_Key = TypeVar("_Key", int, tuple[int, int])


class _Piece(NamedTuple):
    entry: Entry
    rank: Rank


def join_shards(checkpoint: Checkpoint, rules: Rules) -> WholeModel:
    """Return the whole model of a checkpoint.

    Elements are read only of pieces that may be replicas or shards.
    """
    pieces: dict[str, list[_Piece]] = defaultdict(list)
    names = compute_global_names(checkpoint.entries)
    for entry, name in zip(checkpoint.entries, names, strict=True):
        pieces[name].append(_Piece(entry, entry.rank))
    config = read_model_config(checkpoint.settings, find_model_family(checkpoint.settings, rules))
    naming = read_naming(pieces, checkpoint.settings, checkpoint.format, rules)
    rules = rules.for_family(naming.model, find_prediction_layers(pieces))
    joiner = _ShardJoiner(checkpoint, rules, pieces)
    tensors: dict[str, Tensor] = {}
    for name, own_pieces in pieces.items():
        experts = joiner.split_experts(name, own_pieces, config.experts)
        for tensor in experts or [joiner.join_tensor(name, own_pieces)]:
            tensors[tensor.name] = tensor
    checkpoint.release()
    return WholeModel(
        checkpoint=checkpoint,
        naming=naming,
        config=config,
        tensors=tensors,
        problems=(*checkpoint.problems, *joiner.problems),
        rules=rules,
    )


def find_prediction_layers(names: Iterable[str]) -> tuple[int, ...]:
    """Return the layers that files of transformers have after the last, for multi-token prediction.

    They have the names of layers, and a projection of embedding and hidden state besides.
    """
    matches = (_PREDICTION_LAYER.search(name) for name in names)
    return tuple(sorted(int(match[1]) for match in matches if match is not None))


def compute_global_names(entries: Sequence[Entry]) -> list[str]:
    """Return the name of each entry in the whole model."""
    numbering = _GlobalNumbering(entries)
    return [numbering.compute_name(entry) for entry in entries]


class _GlobalNumbering:
    """Global numbers for layers numbered within a stage, and for experts numbered within a rank."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        n_layers: dict[tuple[int, int], int] = defaultdict(int)
        n_experts: dict[int, int] = defaultdict(int)
        for entry in entries:
            layer = None if _MTP.search(entry.name) else _LAYER.search(entry.name)
            if layer is not None:
                stage = _get_stage(entry)
                n_layers[stage] = max(n_layers[stage], int(layer[2]) + 1)
            expert = _EXPERT.search(entry.name)
            if expert is not None:
                rank = entry.rank.expert
                n_experts[rank] = max(n_experts[rank], int(expert[2]) + 1)
        self._first_layers = _accumulate(n_layers)
        self._first_experts = _accumulate(n_experts)

    def compute_name(self, entry: Entry) -> str:
        """Return the global name of an entry."""
        name = entry.name
        first_layer = self._first_layers.get(_get_stage(entry), 0)
        if first_layer and not _MTP.search(name):
            name = _LAYER.sub(lambda m: f"{m[1]}.{int(m[2]) + first_layer}", name, count=1)
        first_expert = self._first_experts.get(entry.rank.expert, 0)
        if first_expert:
            name = _EXPERT.sub(lambda m: f"{m[1]}{int(m[2]) + first_expert}", name)
        return name


def _get_stage(entry: Entry) -> tuple[int, int]:
    """Return a sort key of stages: each virtual stage (chunk) spans all devices."""
    return entry.rank.chunk, entry.rank.pipeline


def _accumulate(counts: Mapping[_Key, int]) -> dict[_Key, int]:
    """Return the sum of the counts of all smaller keys, for each key."""
    starts, total = {}, 0
    for key in sorted(counts):
        starts[key] = total
        total += counts[key]
    return starts


class _ShardJoiner:
    """Joins the pieces of each tensor, and collects problems."""

    def __init__(
        self, checkpoint: Checkpoint, rules: Rules, pieces: Mapping[str, list[_Piece]]
    ) -> None:
        self._checkpoint, self._rules, self._pieces = checkpoint, rules, pieces
        self.problems: list[Problem] = []

    def split_experts(
        self, name: str, pieces: list[_Piece], n_experts: int | None
    ) -> list[Tensor] | None:
        """Return the experts of a sharded grouped weight; None for any other weight."""
        places = {(piece.rank.expert, piece.rank.tensor): piece.entry for piece in reversed(pieces)}
        is_sharded = self._checkpoint.format == FORMAT and len(places) > 1
        if not is_sharded or not is_grouped_weight(name):
            return None
        first_pieces, second_pieces = (
            self._pieces.get(weight, []) for weight in sorted((name, get_sibling_name(name)))
        )
        experts = None
        has_equal_ranks = self._has_equal_ranks(1 + max(tensor_rank for _, tensor_rank in places))
        if n_experts and has_equal_ranks and first_pieces and second_pieces:
            widths = first_pieces[0].entry.shape[-1], second_pieces[0].entry.shape[0]
            raws = {place: self._checkpoint.read_raw(entry) for place, entry in places.items()}
            experts = split_experts(name, pieces[0].entry.dtype, raws, widths, n_experts)
        if experts is None:
            self.problems.append(
                Problem(pieces[0].entry.file, f"{name}: it is not known how its experts are split")
            )
        return experts

    def _has_equal_ranks(self, n_tensor_ranks: int) -> bool:
        """Whether experts are split over as many tensor-parallel ranks as the other weights."""
        settings = self._checkpoint.settings
        expert_size = settings.get("expert_tensor_parallel_size")
        tensor_size = settings.get("tensor_model_parallel_size")
        return expert_size in (None, tensor_size, n_tensor_ranks)

    def join_tensor(self, name: str, pieces: list[_Piece]) -> Tensor:
        """Join the pieces of one tensor."""
        piece_entries = [piece.entry for piece in pieces]
        if all(entry.window is not None for entry in piece_entries):
            return self._join_windows(name, piece_entries)
        # One piece for each tensor-parallel rank: other stages and experts hold replicas, or a tied
        # copy.
        shards = {piece.rank.tensor: piece.entry for piece in reversed(pieces)}
        entries = [shards[rank] for rank in sorted(shards)]
        if len(entries) == 1:
            first = piece_entries[0]
            return make_unsplit_tensor(name, first.dtype, self._checkpoint.read_raw(first))
        return self._join_ranks(name, entries)

    def _join_copies(
        self, name: str, module: str, entries: list[Entry], raws: list[AnyArray]
    ) -> Tensor:
        """Return the first of the ranks' copies; copies that differ are shards, or a problem."""
        dtype, shape = entries[0].dtype, entries[0].shape
        if are_identical(raws):
            return make_unsplit_tensor(name, dtype, raws[0])
        if module in _MAYBE_SPLIT and len(shape) > 1:
            return _join_arrays(name, dtype, raws, 0)
        self.problems.append(
            Problem(entries[1].file, f"{name} differs between tensor-parallel ranks")
        )
        return make_unsplit_tensor(name, dtype, raws[0])

    def _join_ranks(self, name: str, entries: list[Entry]) -> Tensor:
        """Join the shards of tensor-parallel ranks."""
        raws = [self._checkpoint.read_raw(entry) for entry in entries]
        dtype, shape = entries[0].dtype, entries[0].shape
        path_parts = (self._rules.resolve_parameter(name) or name).split(".")
        module = path_parts[-2] if len(path_parts) > 1 else ""
        is_row_parallel = module in ROW_PARALLEL and path_parts[-1] == "weight"
        if self._checkpoint.format == FORMAT:
            sizes = compute_part_sizes(name, self._get_share_shape)
            if sizes is not None and sum(sizes) == shape[0]:
                return _join_arrays(name, dtype, _split_parts(raws, sizes), 0)
            is_row_parallel = is_row_parallel or is_output_projection(name)
        is_split = is_row_parallel or module in COLUMN_PARALLEL or path_parts[-1] == SINKS
        if module == "qkv" and self._has_latent_attention(path_parts) and are_identical(raws):
            is_split = False
        if not shape or not is_split:
            return self._join_copies(name, module, entries, raws)
        if is_row_parallel:
            return _join_arrays(name, dtype, raws, 1)
        # MindSpore splits the whole fused weight; Megatron gives each rank its own gate, then its
        # own up.
        is_megatron_fused = self._checkpoint.format == FORMAT and module == "gate_up_proj"
        n_rows = shape[0] * len(raws)
        if is_megatron_fused and self._has_gate(name, n_rows, len(raws)):
            gates, ups = zip(*(np.split(raw, 2) for raw in raws), strict=True)
            return _join_arrays(name, dtype, [*gates, *ups], 0)
        return _join_arrays(name, dtype, raws, 0)

    def _get_share_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a rank's share of a parameter; None if there is no such name."""
        pieces = self._pieces.get(name)
        return pieces[0].entry.shape if pieces else None

    def _has_latent_attention(self, path_parts: Sequence[str]) -> bool:
        """Return whether a fused qkv is [q_a; kv_a], which MindSpeed gives to every rank."""
        return ".".join((*path_parts[:-2], "kv_b.weight")) in self._paths

    @cached_property
    def _paths(self) -> set[str | None]:
        """Canonical names of all parameters."""
        return set(map(self._rules.resolve_parameter, self._pieces))

    def _has_gate(self, name: str, n_rows: int, n_ranks: int) -> bool:
        """Whether the first matrix of an MLP has twice as many rows as the second has columns."""
        path = self._rules.resolve_parameter(name)
        second_path = path.rpartition("gate_up_proj")[0] + "down_proj.weight"
        for other, pieces in self._pieces.items():
            if self._rules.resolve_parameter(other) == second_path:
                return n_rows == 2 * pieces[0].entry.shape[-1] * n_ranks
        return False

    def _join_windows(self, name: str, entries: list[Entry]) -> Tensor:
        """Join slices that record their position: bands of adjacent slices, one below the other."""
        entry_at = {entry.window.start: entry for entry in entries if entry.window is not None}
        shape = next(entry.window.full_shape for entry in entries if entry.window is not None)
        dtype = entries[0].dtype
        if all(entry.shape == shape for entry in entries):
            return make_unsplit_tensor(name, dtype, self._checkpoint.read_raw(entries[0]))
        bands: dict[tuple[int, ...], list[Matrix]] = defaultdict(list)
        n_covered = 0
        for start in sorted(entry_at):
            raw = self._checkpoint.read_raw(entry_at[start])
            n_covered += raw.size
            bands[start[:1]].append(Matrix.from_array(raw, dtype))
        if n_covered != int(np.prod(shape)):
            self.problems.append(
                Problem(entries[0].file, f"{name}: its slices do not cover the whole tensor")
            )
        matrix = concatenate_rows([concatenate_columns(band) for band in bands.values()])
        raws = [self._checkpoint.read_raw(entry_at[start]) for start in sorted(entry_at)]
        has_whole_rows = {raw.shape for raw in raws} == {(raws[0].shape[0], *shape[1:])}
        return Tensor(name, matrix, shape, tuple(raws) if has_whole_rows else ())


def _split_parts(raws: Sequence[AnyArray], sizes: Sequence[int]) -> list[AnyArray]:
    """Return the parts of all ranks, in the order of the parts: rows of the first of each rank."""
    shares = [np.split(raw, np.cumsum(sizes)[:-1]) for raw in raws]
    return [part for parts in zip(*shares, strict=True) for part in parts]


def _join_arrays(name: str, dtype: str, raws: list[AnyArray], axis: int) -> Tensor:
    """Join arrays of one tensor along an axis."""
    shape = list(raws[0].shape)
    shape[axis] = sum(raw.shape[axis] for raw in raws)
    matrices = [Matrix.from_array(raw, dtype) for raw in raws]
    matrix = concatenate_rows(matrices) if axis == 0 else concatenate_columns(matrices)
    return Tensor(name, matrix, tuple(shape))
