"""What a family of checkpoints is: names and layouts as data, and how canonical parameters become its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..model.errors import DumpError
from ..weight_comparison.row_permutation import build_fused_order
from ..weight_comparison.shards import COLUMN_PARALLEL, ROW_PARALLEL
from .canonical import FusionLayout
from .rows import Rows, OutputTensor, join_rows

_LAYER = re.compile(r"^layers\.(\d+)\.(.+)\.(\w+)$")
_NUMBER = re.compile(r"(?<=experts\.)\d+")


@dataclass(frozen=True)
class Fusion:
    """Parts that a family keeps in one weight. ``where`` is a pattern of what stands before them."""

    fused: str
    parts: tuple[str, ...]
    layout: FusionLayout
    prefix: str = r".*"


@dataclass(frozen=True)
class TargetLayout:
    """Names and layouts. Keys are canonical, without layer and leaf; ``{}`` stands for the number of an expert."""

    name: str
    layer_prefix: str  #: what stands before a name in layer ``{}``
    block: Mapping[
        str, str
    ]  #: module -> name; a key with a leaf (``.weight``) has the whole name, leaf included
    model: Mapping[str, str]  #: the same outside of layers
    dense: Mapping[str, str] = field(
        default_factory=dict
    )  #: what ``block`` does not hold for in layers without router
    fusions: tuple[Fusion, ...] = ()
    transposed: frozenset[str] = frozenset()  #: written as [in, out]
    stacked: Mapping[str, str] = field(
        default_factory=dict
    )  #: module of experts -> whole name of all of a layer
    stack_axes: int = 3  #: 2: the first two joined
    stack_transposed: bool = False  #: each expert as [in, out]
    orders: Mapping[str, Callable[[Rows], Rows]] = field(
        default_factory=dict
    )  #: rows in another order than canonical
    replicated: frozenset[str] = frozenset()  #: not cut by tensor parallelism
    exact: Mapping[str, str] = field(
        default_factory=dict
    )  #: canonical name -> name, before all other tables
    sharded_by_rows: frozenset[str] = (
        frozenset()
    )  #: its rows are, besides those of every column-parallel layer


def shard_parameters(parameters: Mapping[str, Rows], target: TargetLayout, rank: int, ranks: int) -> dict[str, Rows]:
    """What one tensor-parallel rank has of each parameter. Raises DumpError where it does not divide."""
    if ranks == 1:
        return dict(parameters)
    return {path: _share(path, rows, target, rank, ranks) for path, rows in parameters.items()}


def _share(path: str, rows: Rows, target: TargetLayout, rank: int, ranks: int) -> Rows:
    module, leaf = path.split(".")[-2:]
    if module in target.replicated:
        return rows
    if module in COLUMN_PARALLEL or module in target.sharded_by_rows:
        axis = 0
    elif module in ROW_PARALLEL and leaf == "weight":
        axis = 1
    else:
        return rows
    if rows.shape[axis] % ranks:
        raise DumpError(f"{path}: {rows.shape[axis]} does not divide by --tp {ranks}")
    return rows.take_share(axis, rank, ranks)


def build_tensors(
    parameters: Mapping[str, Rows],
    sources: Mapping[str, str],
    target: TargetLayout,
    groups: int,
    dtype: str | None,
) -> list[OutputTensor]:
    """The tensors of a target, fused and stacked, in the order of the parameters.

    ``groups`` are the query groups that q, k and v have here; ``dtype`` is what floating elements become, None for what
    they are. Raises DumpError for a parameter that the target has no name for.
    """
    origins: dict[str, tuple[str, ...]] = {path: (sources[path],) for path in parameters}
    made = dict(parameters)
    for path, turn in (
        (path, turn) for path in parameters if (turn := target.orders.get(_module(path)))
    ):
        made[path] = turn(made[path])
    for fusion in target.fusions:
        made, origins = _fused(made, origins, fusion, groups)
    tensors: dict[str, OutputTensor] = {}
    routed = {path.split(".mlp.")[0] for path in made if path.endswith(".mlp.router.weight")}
    for path, rows in made.items():
        key, name = _name(path, target, routed)
        stack = target.stacked.get(key)
        turned = target.stack_transposed if stack else key in target.transposed and not rows.vector
        shape: tuple[int, ...] = rows.shape[::-1] if turned else rows.shape
        shape = shape[:1] if rows.vector else shape
        if stack and name in tensors:
            one = tensors[name]
            joint = (one.shape[0] + 1, *shape)
            tensors[name] = replace(
                one,
                shape=joint,
                parts=(*one.parts, rows),
                sources=tuple(dict.fromkeys((*one.sources, *origins[path]))),
            )
            continue
        whole = (1, *shape) if stack else shape
        tensors[name] = OutputTensor(
            name, _dtype(path, rows.dtype, dtype), whole, (rows,), turned, origins[path]
        )
    flat = set(target.stacked.values()) if target.stack_axes == 2 else set()
    return [
        replace(t, shape=(t.shape[0] * t.shape[1], *t.shape[2:]))
        if any(t.name.endswith(s) for s in flat)
        else t
        for t in tensors.values()
    ]


def _dtype(path: str, own: str, wanted: str | None) -> str:
    """What to write: a router's correction is a sum over many steps, and stays as it is."""
    floating = own in ("float64", "float32", "float16", "bfloat16")
    return wanted if wanted and floating and not path.endswith("expert_bias") else own


def _module(path: str) -> str:
    matched = _LAYER.match(path)
    return _NUMBER.sub("{}", matched[2]) if matched else path.rpartition(".")[0]


def _name(path: str, target: TargetLayout, routed: set[str]) -> tuple[str, str]:
    """(key in the tables, name in the target)."""
    if path in target.exact:
        return path, target.exact[path]
    matched = _LAYER.match(path)
    number = _NUMBER.search(path)
    expert = number[0] if number else ""
    if matched is None:
        module, _, leaf = path.rpartition(".")
        table, front = target.model, ""
    else:
        layer, module, leaf = matched.groups()
        dense = {} if f"layers.{layer}" in routed else target.dense
        table, front = (
            {**target.block, **dense} if dense else target.block,
            target.layer_prefix.format(layer),
        )
        module = _NUMBER.sub("{}", module)
    if (stack := target.stacked.get(module)) is not None and leaf == "weight":
        return module, front + stack
    if (whole := table.get(f"{module}.{leaf}")) is not None:
        return module, front + whole.format(expert)
    if module in table:
        return module, f"{front}{table[module].format(expert)}.{leaf}"
    raise DumpError(
        f"{target.name} has no name for {path}; convert to another, or leave it out of the source"
    )


def _fused(
    made: Mapping[str, Rows], origins: Mapping[str, tuple[str, ...]], fusion: Fusion, groups: int
) -> tuple[dict[str, Rows], dict[str, tuple[str, ...]]]:
    """Every set of parts that is complete in one, in the place of its first; the others stay as they are."""
    first = re.compile(rf"^({fusion.prefix}\.){fusion.parts[0]}\.(\w+)$")
    found: dict[str, Rows] = {}
    sources: dict[str, tuple[str, ...]] = {}
    gone: set[str] = set()
    for path, rows in made.items():
        matched = first.match(path)
        names = [f"{matched[1]}{part}.{matched[2]}" for part in fusion.parts] if matched else []
        if not names or not all(name in made for name in names):
            if path not in gone:
                found[path], sources[path] = rows, origins[path]
            continue
        parts = [made[name] for name in names]
        whole = f"{names[0].rpartition('.')[0].rpartition('.')[0]}.{fusion.fused}.{names[0].rpartition('.')[2]}"
        found[whole] = _in_turns(whole, parts, fusion, groups)
        sources[whole] = tuple(dict.fromkeys(name for part in names for name in origins[part]))
        gone.update(names)
        for name in names:  # parts that stood before the first
            found.pop(name, None)
            sources.pop(name, None)
    return found, sources


def _in_turns(whole: str, parts: list[Rows], fusion: Fusion, groups: int) -> Rows:
    sizes = [part.shape[0] for part in parts]
    if len({(part.dtype, part.shape[1]) for part in parts}) > 1:
        raise DumpError(
            f"{whole}: its parts differ in dtype or width, so that they cannot be one weight"
        )
    count = {"grouped": groups, "concatenated": 1, "interleaved": min(sizes)}[fusion.layout]
    if count == 0:
        raise DumpError(
            f"{whole}: how many heads has the model? Nothing says so: --heads N --query-groups N"
        )
    order = build_fused_order(sizes, count)
    if order is None:
        raise DumpError(
            f"{whole}: {' + '.join(map(str, sizes))} rows do not divide into {count} query groups"
        )
    return join_rows(parts, order)
