"""Shards of a parallel run put together: tensor, pipeline and expert parallelism, undone as their framework did them.

Megatron-core cuts the rows of column-parallel layers and the columns of row-parallel ones, numbers layers within a
stage and experts within a rank (megatron/core/tensor_parallel/layers.py, transformer_layer.py, moe_layer.py). Where a
checkpoint says itself which slice an entry is (``Entry.window``), that is followed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ..checkpoints import Checkpoint, Entry, Rank
from ..checkpoints.megatron import FORMAT
from ..model.arrays import AnyArray
from ..model.trace import Problem
from ..rulebook import Rules
from .families import detect_family, read_model_config
from .grouped_experts import is_grouped_weight, split_experts, get_sibling_name
from .matrix import Matrix, stack_rows, stack_columns
from .whole_model import WholeModel, Tensor, are_identical, make_unsplit_tensor

#: Last module of a canonical name -> the axis that tensor parallelism cuts; of a bias of a column-parallel layer too.
COLUMN_PARALLEL = frozenset({
    "qkv", "q", "k", "v", "gate_up_proj", "gate_proj", "up_proj", "q_b", "kv_b", "q_b_nope", "q_b_rope", "kv_b_k",
    "kv_b_v", "embedding", "head", "eh_proj",
})  # fmt: skip
ROW_PARALLEL = frozenset({"out", "down_proj"})
_LAYER = re.compile(r"(?<![\w])(layers|layer|blocks|h)\.(\d+)(?=\.)")
_EXPERT = re.compile(r"(local_experts\.|linear_fc[12]\.(?:weight|bias))(\d+)")
_MTP = re.compile(r"(^|\.)mtp\.")


_Key = TypeVar("_Key", int, tuple[int, int])


class _Piece(NamedTuple):
    entry: Entry
    rank: Rank


def join_shards(checkpoint: Checkpoint, rules: Rules) -> WholeModel:
    """The whole model of a checkpoint. Nothing is read but pieces that must be told apart from replicas."""
    pieces: dict[str, list[_Piece]] = defaultdict(list)
    for entry, name in zip(checkpoint.entries, compute_global_names(checkpoint.entries), strict=True):
        pieces[name].append(_Piece(entry, entry.rank))
    numbers, family = read_model_config(checkpoint.settings), detect_family(pieces, checkpoint.format)
    joined = _Joining(checkpoint, rules, pieces)
    tensors: dict[str, Tensor] = {}
    for name, found in pieces.items():
        apart = joined.experts(name, found, numbers.experts)
        tensors |= {one.name: one for one in apart or [joined.tensor(name, found)]}
    checkpoint.release()
    return WholeModel(
        checkpoint, family, numbers, tensors, (*checkpoint.problems, *joined.problems), rules
    )


def compute_global_names(entries: Sequence[Entry]) -> list[str]:
    """What each entry is called in the whole model."""
    renumbered = _Renumbering(entries)
    return [renumbered.name(entry) for entry in entries]


class _Renumbering:
    """Layers numbered within a stage, and experts within a rank, get their global numbers."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        layers: dict[tuple[int, int], int] = defaultdict(int)
        experts: dict[int, int] = defaultdict(int)
        for entry in entries:
            if not _MTP.search(entry.name) and (found := _LAYER.search(entry.name)) is not None:
                stage = (
                    entry.rank.chunk,
                    entry.rank.pipeline,
                )  # a virtual stage runs through all devices
                layers[stage] = max(layers[stage], int(found[2]) + 1)
            if (found := _EXPERT.search(entry.name)) is not None:
                experts[entry.rank.expert] = max(experts[entry.rank.expert], int(found[2]) + 1)
        self._first_layer = _starts(layers)
        self._first_expert = _starts(experts)

    def name(self, entry: Entry) -> str:
        """The global name."""
        name, stage = entry.name, (entry.rank.chunk, entry.rank.pipeline)
        if not _MTP.search(name) and self._first_layer.get(stage):
            name = _LAYER.sub(
                lambda m: f"{m[1]}.{int(m[2]) + self._first_layer[stage]}", name, count=1
            )
        if self._first_expert.get(entry.rank.expert):
            name = _EXPERT.sub(
                lambda m: f"{m[1]}{int(m[2]) + self._first_expert[entry.rank.expert]}", name
            )
        return name


def _starts(counts: Mapping[_Key, int]) -> dict[_Key, int]:
    found, total = {}, 0
    for key in sorted(counts):
        found[key] = total
        total += counts[key]
    return found


class _Joining:
    """The pieces of each tensor, joined; what looks wrong is a problem."""

    def __init__(
        self, checkpoint: Checkpoint, rules: Rules, pieces: Mapping[str, list[_Piece]]
    ) -> None:
        self._checkpoint, self._rules, self._pieces = checkpoint, rules, pieces
        self.problems: list[Problem] = []

    def experts(
        self, name: str, pieces: list[_Piece], count: int | None
    ) -> Iterable[Tensor] | None:
        """The experts of Megatron-core's grouped weights, where these are split; None for all else."""
        places = {(piece.rank.expert, piece.rank.tensor): piece.entry for piece in reversed(pieces)}
        if self._checkpoint.format != FORMAT or len(places) < 2 or not is_grouped_weight(name):
            return None
        settings = self._checkpoint.settings
        own = settings.get("expert_tensor_parallel_size")
        alike = own in (
            None,
            settings.get("tensor_model_parallel_size"),
            1 + max(tensor for _, tensor in places),
        )
        both = [self._pieces.get(which, []) for which in sorted((name, get_sibling_name(name)))]
        apart = None
        if count and alike and all(both):
            widths = both[0][0].entry.shape[-1], both[1][0].entry.shape[0]
            raws = {place: self._checkpoint.read_raw(entry) for place, entry in places.items()}
            apart = split_experts(name, pieces[0].entry.dtype, raws, widths, count)
        if apart is None:
            self.problems.append(
                Problem(pieces[0].entry.file, f"{name}: how its experts are split, nothing says")
            )
        return apart

    def tensor(self, name: str, pieces: list[_Piece]) -> Tensor:
        first = pieces[0].entry
        if all(piece.entry.window is not None for piece in pieces):
            return self._windows(name, [piece.entry for piece in pieces])
        # one piece for each tensor-parallel rank: other stages and experts hold replicas, or a tied copy
        shards = {piece.rank.tensor: piece.entry for piece in reversed(pieces)}
        entries = [shards[rank] for rank in sorted(shards)]
        if len(entries) == 1:
            return make_unsplit_tensor(name, first.dtype, self._checkpoint.read_raw(first))
        return self._parallel(name, entries)

    def _parallel(self, name: str, entries: list[Entry]) -> Tensor:
        """The shards of tensor-parallel ranks."""
        raws = [self._checkpoint.read_raw(entry) for entry in entries]
        dtype, shape = entries[0].dtype, entries[0].shape
        parts = (self._rules.resolve_parameter(name) or name).split(".")
        module, leaf = parts[-2] if len(parts) > 1 else "", parts[-1]
        split = module in COLUMN_PARALLEL or (module in ROW_PARALLEL and leaf == "weight")
        if not split or not shape:
            if not are_identical(raws):
                if (
                    module and len(shape) > 1 and parts[-2] in ("q_a", "kv_a")
                ):  # the local spec cuts these, TE does not
                    return _joined(name, dtype, raws, 0)
                self.problems.append(
                    Problem(entries[1].file, f"{name} differs between tensor-parallel ranks")
                )
            return make_unsplit_tensor(name, dtype, raws[0])
        if module in ROW_PARALLEL:
            return _joined(name, dtype, raws, 1)
        megatron = (
            self._checkpoint.format == FORMAT
        )  # MindSpore cuts the whole of it, wherever its parts lie
        if (
            megatron
            and module == "gate_up_proj"
            and self._gated(name, shape[0] * len(raws), len(raws))
        ):
            halves = [
                np.split(raw, 2) for raw in raws
            ]  # each rank has its own gate, then its own up
            return _joined(name, dtype, [half[i] for i in (0, 1) for half in halves], 0)
        return _joined(name, dtype, raws, 0)

    def _gated(self, name: str, rows: int, ranks: int) -> bool:
        """Whether the first matrix of an MLP holds gate and up: twice as many rows as the second has columns."""
        path = self._rules.resolve_parameter(name)
        stem = path.rpartition("gate_up_proj")[0] + "down_proj.weight"
        for other, pieces in self._pieces.items():
            if self._rules.resolve_parameter(other) == stem:
                return rows == 2 * pieces[0].entry.shape[-1] * ranks
        return False

    def _windows(self, name: str, entries: list[Entry]) -> Tensor:
        """Slices that say where they stand: rows of slices side by side, one below the other."""
        whole = entries[0].window.full_shape  # type: ignore[union-attr]
        if all(entry.shape == whole for entry in entries):
            return make_unsplit_tensor(name, entries[0].dtype, self._checkpoint.read_raw(entries[0]))
        placed = {entry.window.start: entry for entry in entries if entry.window is not None}
        bands: dict[tuple[int, ...], list[Matrix]] = defaultdict(list)
        covered = 0
        for start in sorted(placed):
            raw = self._checkpoint.read_raw(placed[start])
            covered += raw.size
            bands[start[:1]].append(Matrix.from_array(raw, entries[0].dtype))
        if covered != int(np.prod(whole)):
            self.problems.append(
                Problem(entries[0].file, f"{name}: its slices do not make up the whole")
            )
        matrix = stack_rows([stack_columns(band) for band in bands.values()])
        return Tensor(name, matrix, whole)


def _joined(name: str, dtype: str, raws: list[AnyArray], axis: int) -> Tensor:
    """Arrays of one tensor, joined along an axis."""
    shape = list(raws[0].shape)
    shape[axis] = sum(raw.shape[axis] for raw in raws)
    matrices = [Matrix.from_array(raw, dtype) for raw in raws]
    return Tensor(name, stack_rows(matrices) if axis == 0 else stack_columns(matrices), tuple(shape))
