"""A checkpoint as canonical parameters, nothing fused, stacked, transposed or split: what every target is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..checkpoints import Checkpoint
from ..model.errors import DumpError
from ..rulebook import Rules
from ..weight_comparison.families import (
    GPT2,
    HUGGINGFACE,
    META,
    MINDFORMERS,
    MINDFORMERS_LEGACY,
    ModelConfig,
)
from ..weight_comparison.groups import is_state, collect_members
from ..weight_comparison.row_permutation import build_fused_order, invert_order, swap_row_axes
from ..weight_comparison.shards import join_shards
from ..weight_comparison.whole_model import WholeModel
from .rows import Rows

FusionLayout = Literal["grouped", "concatenated", "interleaved"]

#: Family -> the turns in which q, k and v lie in one weight, where not by query group; see weights.conventions.
_QKV: Mapping[str, FusionLayout] = {HUGGINGFACE: "concatenated", GPT2: "concatenated"}
#: Family -> the turns of gate and up in a dense layer, where not one after the other. Experts always are.
_GATE_UP: Mapping[str, FusionLayout] = {MINDFORMERS: "interleaved", MINDFORMERS_LEGACY: "interleaved"}
_FUSED = re.compile(r"^(.*\.)(qkv|gate_up_proj)\.(weight|bias)$")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_STACK = re.compile(r"\.experts\.(gate_up_proj|gate_proj|up_proj|down_proj)\.")
_MTP = re.compile(r"(^|\.)mtp\.|\.(enorm|hnorm|eh_proj)\.")


@dataclass(frozen=True)
class SourceOptions:
    """What the user says of the source; None for what its files say, or its family does."""

    heads: int | None = None
    groups: int | None = None
    experts: int | None = None
    vocabulary: int | None = None  #: without padding
    qkv: FusionLayout | None = None
    gate_up: FusionLayout | None = None
    gated: bool | None = None


@dataclass(frozen=True)
class CanonicalCheckpoint:
    """The parameters of a model by canonical name, and what is known of it."""

    parameters: Mapping[str, Rows]
    sources: Mapping[str, str]  #: canonical name -> the source's
    numbers: ModelConfig
    settings: Mapping[str, Any]  #: of the source
    family: str
    skipped: tuple[str, ...]  #: states of optimizers, counters, tables
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """How many."""
        return _layers(self.parameters)

    def has_parameter(self, ending: str) -> bool:
        """Whether any parameter's canonical name ends so."""
        return any(path.endswith(ending) for path in self.parameters)

    @property
    def has_mla(self) -> bool:
        """Whether keys and values are compressed (multi-head latent attention)."""
        return self.has_parameter(".attention.kv_b.weight")


def _layers(paths: Iterable[str]) -> int:
    return 1 + max(
        (int(m[1]) for path in paths if (m := re.match(r"layers\.(\d+)\.", path))), default=-1
    )


def read_canonical(checkpoint: Checkpoint, rules: Rules, said: SourceOptions) -> CanonicalCheckpoint:
    """Read names and shapes of a checkpoint; the elements stay where they are.

    Raises DumpError for a parameter that no rule knows, or a fused one whose parts cannot be told.
    """
    side = join_shards(checkpoint, rules)
    for problem in side.problems[len(checkpoint.problems) :]:
        raise DumpError(f"{problem.file}: {problem.message}; put the checkpoint right first")
    numbers = _numbers(side.config, said)
    side = replace(side, numbers=numbers)
    found: dict[str, Rows] = {}
    sources: dict[str, str] = {}
    for member in collect_members(side, side).values():
        shape = side.tensors[member.name].shape
        vector = len(shape) < 2 or (member.expert is not None and member.path.endswith(".bias"))
        _check_known(side, member.name, member.path)
        whole = Rows.from_matrix(member.matrix, vector)
        for path, rows in _parts(member.path, whole, side, numbers, said):
            if path in found:
                raise DumpError(
                    f"{checkpoint.path}: {member.name} and {sources[path]} are both {path}"
                )
            found[path], sources[path] = _halves(path, rows, side.family, numbers), member.label
    notes = (*map(str, checkpoint.problems), *_notes(side.family, found, sources, said))
    left = tuple(
        name for name, tensor in side.tensors.items() if is_state(side.canonical_of(name), tensor)
    )
    found = _unpadded(_untied(found, numbers), numbers)
    found = {path: found[path] for path in sorted(found, key=_natural)}
    return CanonicalCheckpoint(found, sources, numbers, checkpoint.settings, side.family, left, notes)


def _natural(path: str) -> list[tuple[int, str]]:
    """Names in the order in which people count: layer 10 after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split(".")]


def _numbers(numbers: ModelConfig, said: SourceOptions) -> ModelConfig:
    heads = said.heads or numbers.heads
    groups = said.groups or (
        said.heads if said.heads and said.heads != numbers.heads else numbers.groups
    )
    return replace(
        numbers,
        heads=heads,
        groups=groups,
        experts=said.experts or numbers.experts,
        vocabulary=said.vocabulary or numbers.vocabulary,
    )


def _check_known(side: WholeModel, name: str, path: str) -> None:
    if _MTP.search(path):
        raise DumpError(
            f"{side.checkpoint.path}: {name} belongs to multi-token prediction, which is not converted"
        )
    if _STACK.search(path):
        raise DumpError(
            f"{side.checkpoint.path}: how many experts does {name} hold? Nothing says so: --experts N"
        )
    if path.endswith("_scale_inv"):
        raise DumpError(
            f"{side.checkpoint.path}: {name} scales 8-bit weights, which are not converted; decode them first"
        )
    known = side.canonical_of(name) != name or path in side.canonical
    if not known:
        raise DumpError(f"{side.checkpoint.path}: no rule knows {name}; name it with --rules FILE")


def _parts(
    path: str, whole: Rows, side: WholeModel, numbers: ModelConfig, said: SourceOptions
) -> Iterator[tuple[str, Rows]]:
    """The parameters that one holds, apart."""
    matched = _FUSED.match(path)
    if matched is None:
        yield path, whole
        return
    stem, module, leaf = matched.groups()
    if module == "qkv":
        names, sizes = _qkv_sizes(stem, whole, side, numbers)
        turns = said.qkv or _QKV.get(side.family, "grouped")
        groups = (numbers.groups or 1) if turns == "grouped" and len(names) == 3 else 1
    elif _gated(path, stem, whole, side, said):
        names, sizes = ("gate_proj", "up_proj"), [whole.shape[0] // 2] * 2
        turns = said.gate_up or _GATE_UP.get(side.family, "concatenated")
        groups = sizes[0] if turns == "interleaved" and not _EXPERT.search(path) else 1
    else:
        yield path, whole
        return
    order = build_fused_order(sizes, groups)
    if order is None:
        raise DumpError(
            f"{side.checkpoint.path}: {path} of {sum(sizes)} rows does not divide into {groups} groups"
        )
    places = invert_order(order)
    starts = np.cumsum([0, *sizes])
    for name, start, end in zip(names, starts[:-1], starts[1:], strict=True):
        yield f"{stem}{name}.{leaf}", whole.pick_rows(places[start:end])


def _qkv_sizes(
    stem: str, whole: Rows, side: WholeModel, numbers: ModelConfig
) -> tuple[Sequence[str], list[int]]:
    """What is in a fused qkv, and how many rows of each."""
    rows, path = whole.shape[0], side.checkpoint.path
    if (
        up := side.canonical.get(f"{stem}kv_b.weight")
    ) is not None:  # MLA: the projections down in one
        rope = next(
            (side.checkpoint.settings.get(k) for k in ("qk_rope_head_dim", "qk_pos_emb_head_dim")),
            None,
        )
        down = side.canonical.get(f"{stem}q_norm.weight")
        latent = side.tensors[up].shape[1]
        if down is not None:
            return ("q_a", "kv_a"), [side.tensors[down].size, rows - side.tensors[down].size]
        if not isinstance(rope, int):
            raise DumpError(
                f"{path}: how wide is the rope part of a head? Its config.json must give qk_rope_head_dim"
            )
        return ("q", "kv_a"), [rows - latent - rope, latent + rope]
    heads, groups = numbers.heads, numbers.groups
    if not heads or not groups:
        raise DumpError(
            f"{path}: how many heads has it? Neither its config.json nor its arguments say: --heads N"
        )
    if heads % groups or rows % (heads + 2 * groups):
        raise DumpError(
            f"{path}: {rows} rows of q, k and v do not divide into {heads} heads and {groups} query groups"
        )
    size = rows // (heads + 2 * groups)
    return ("q", "k", "v"), [heads * size, groups * size, groups * size]


def _gated(path: str, stem: str, whole: Rows, side: WholeModel, said: SourceOptions) -> bool:
    """Whether the first matrix of an MLP is gate and up: it has twice the rows that the second has columns."""
    if _EXPERT.search(path) or said.gated is not None:
        return said.gated is not False
    down = side.canonical.get(f"{stem}down_proj.weight")
    if down is None:
        raise DumpError(
            f"{side.checkpoint.path}: {path} has no down_proj beside it, which says whether it has a gate"
        )
    shape = side.tensors[down].shape
    return whole.shape[0] == 2 * (shape[0] if side.family == GPT2 else shape[1])


def _halves(path: str, rows: Rows, family: str, numbers: ModelConfig) -> Rows:
    """q and k with the two halves of each head that RoPE rotates one after the other, as all but Meta's files."""
    heads = numbers.heads if path.endswith(".attention.q.weight") else numbers.groups
    if family != META or not path.endswith((".attention.q.weight", ".attention.k.weight")):
        return rows
    if not heads or rows.shape[0] % (2 * heads):
        raise DumpError(
            "Meta's files keep q and k in RoPE pairs: how many heads has it? --heads N --query-groups N"
        )
    return rows.pick_rows(swap_row_axes(heads, rows.shape[0] // heads // 2, 2))


def _untied(found: dict[str, Rows], numbers: ModelConfig) -> dict[str, Rows]:
    """Without a head that is a copy of the embedding in a model whose settings say so."""
    head, table = found.get("head.weight"), found.get("embedding.weight")
    if not numbers.tied or head is None or table is None or head.shape != table.shape:
        return found
    if all(np.array_equal(a, b) for a, b in zip(head.read_chunks(), table.read_chunks(), strict=True)):
        return {path: rows for path, rows in found.items() if path != "head.weight"}
    return found


def _unpadded(found: dict[str, Rows], numbers: ModelConfig) -> dict[str, Rows]:
    """Embedding and head with the rows of the vocabulary alone."""
    true = numbers.vocabulary
    if true is None:
        return found
    made = dict(found)
    for path in ("embedding.weight", "head.weight", "head.bias"):
        if path in made and made[path].shape[0] > true:
            made[path] = made[path].resize(true)
        elif path in made and made[path].shape[0] < true:
            raise DumpError(
                f"{path} has {made[path].shape[0]} rows, less than a vocabulary of {true}"
            )
    return made


def _notes(
    family: str, found: Mapping[str, Rows], sources: Mapping[str, str], said: SourceOptions
) -> Iterator[str]:
    """What was taken for granted since no file says it."""
    if family not in (MINDFORMERS, MINDFORMERS_LEGACY):
        return
    for parts, given, option in (
        (
            ("attention.q", "attention.k"),
            said.qkv,
            "q, k and v were read by query group; --from-qkv concatenated",
        ),
        (
            ("mlp.gate_proj", "mlp.up_proj"),
            said.gate_up,
            "gate and up were read in turns; --from-gate-up concatenated",
        ),
    ):
        pairs = (
            [sources.get(f"layers.{layer}.{part}.weight") for part in parts]
            for layer in range(_layers(found))
        )
        if given is None and any(one is not None and one == other for one, other in pairs):
            yield f"{option} if they lie one after the other"
