"""Names and layouts of a target framework, and how canonical parameters become its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..model.errors import DumpError
from ..weight_comparison.row_permutation import build_fused_order
from ..weight_comparison.shards import COLUMN_PARALLEL, ROW_PARALLEL, SINKS
from . import mamba
from .canonical import FusionLayout
from .parallel_ranks import ParallelSizes, Rank, is_expert
from .rows import OutputTensor, Rows, join_rows

_LAYER = re.compile(r"^(layers\.(?P<layer>\d+)|mtp\.(?P<depth>\d+)\.block)\.(.+)\.(\w+)$")
_PREDICTION = re.compile(r"^mtp\.(\d+)\.(\w+)\.(\w+)$")
_EXPERT_NUMBER = re.compile(r"(?<=experts\.)\d+")
_FLOATING = ("float64", "float32", "float16", "bfloat16")  #: dtypes that ``--dtype`` changes


@dataclass(frozen=True)
class Fusion:
    """Parts that a family keeps in one weight; ``prefix`` is a pattern of the modules around."""

    fused: str
    parts: tuple[str, ...]
    layout: FusionLayout
    prefix: str = r".*"


@dataclass(frozen=True)
class TargetLayout:
    """Names and layouts. Keys are canonical module names with ``{}`` for an expert's number."""

    name: str
    layer_prefix: str  #: prefix of all names in layer ``{}``
    #: module -> name; a key that ends in ``.weight`` or ``.bias`` has the full name of the tensor
    block: Mapping[str, str]
    model: Mapping[str, str]  #: the same, outside the layers
    #: Entries that replace those of ``block`` in layers without a router.
    dense: Mapping[str, str] = field(default_factory=dict)
    fusions: tuple[Fusion, ...] = ()
    transposed: frozenset[str] = frozenset()  #: written as [in, out]
    #: parameter of an expert -> full name of the tensor that stacks all experts of a layer
    stacked: Mapping[str, str] = field(default_factory=dict)
    stack_axes: int = 3  #: 2: the first two axes are merged into one
    stack_transposed: bool = False  #: each expert as [in, out]
    replicated: frozenset[str] = frozenset()  #: modules that tensor parallelism does not split
    #: Module of a prediction layer -> name, with ``{}`` for its number; ``block``: its layer.
    predictions: Mapping[str, str] = field(default_factory=dict)
    first_prediction: int = 0  #: number of the first prediction layer
    #: Full canonical name -> name; looked up before all other tables.
    exact: Mapping[str, str] = field(default_factory=dict)
    #: Modules whose rows are split, in addition to all column-parallel layers.
    sharded_by_rows: frozenset[str] = frozenset()


def shard_parameters(
    parameters: Mapping[str, Rows], target: TargetLayout, rank: Rank, sizes: ParallelSizes
) -> dict[str, Rows]:
    """Return the shares of one rank. Raises DumpError if lengths do not divide."""
    shares = {}
    for path, rows in parameters.items():
        number, n_ranks, option = rank.tensor, sizes.tensor, "--tp"
        if is_expert(path):
            number, n_ranks, option = rank.expert_tensor, sizes.tensor_of_experts, "--etp"
        axis = None if n_ranks == 1 else _find_split_axis(path, target)
        if axis is None:
            shares[path] = rows
            continue
        if rows.shape[axis] % n_ranks:
            raise DumpError(f"{path}: {rows.shape[axis]} does not divide by {option} {n_ranks}")
        shares[path] = rows.take_share(axis, number, n_ranks)
    return shares


def _find_split_axis(path: str, target: TargetLayout) -> int | None:
    """Return the axis that tensor parallelism splits; None if all ranks have the whole."""
    module, leaf = path.split(".")[-2:]
    if mamba.is_mixer(path):
        return mamba.find_split_axis(path)
    if module in target.replicated:
        return None
    if leaf == SINKS:
        return 0
    if module in COLUMN_PARALLEL or module in target.sharded_by_rows:
        return 0
    return 1 if module in ROW_PARALLEL and leaf == "weight" else None


@dataclass(frozen=True, eq=False)
class _Parameter:
    """A parameter of the target: canonical, or fused from canonical ones."""

    rows: Rows
    sources: tuple[str, ...]


def build_tensors(
    parameters: Mapping[str, Rows],
    sources: Mapping[str, str],
    target: TargetLayout,
    groups: int,
    dtype: str | None,
) -> list[OutputTensor]:
    """Return the tensors of a target, fused and stacked, in the order of the parameters.

    ``groups`` is the number of query groups of q, k and v here. ``dtype`` is the new dtype of
    floating elements; None keeps each dtype. Raises DumpError for a parameter that the target has
    no name for.
    """
    fused = {path: _Parameter(rows, (sources[path],)) for path, rows in parameters.items()}
    for fusion in target.fusions:
        fused = _fuse_parts(fused, fusion, groups)
    layers_with_router = set()
    for path in fused:
        if path.endswith(".mlp.router.weight"):
            layers_with_router.add(path.split(".mlp.")[0])
    tensors: dict[str, OutputTensor] = {}
    stacks = set()
    for path, parameter in fused.items():
        key, name = _find_name(path, target, layers_with_router)
        tensor = _build_tensor(name, key, path, parameter, target, dtype)
        if key in target.stacked:
            stacks.add(name)
            tensor = _stack(tensors.get(name), tensor)
        tensors[name] = tensor
    if target.stack_axes == 2:
        for name in stacks:
            tensors[name] = _merge_first_axes(tensors[name])
    return list(tensors.values())


def _build_tensor(
    name: str, key: str, path: str, parameter: _Parameter, target: TargetLayout, dtype: str | None
) -> OutputTensor:
    rows = parameter.rows
    is_stored_transposed = (
        target.stack_transposed if key in target.stacked else key in target.transposed
    )
    transposed = is_stored_transposed and not rows.vector
    shape: tuple[int, ...] = rows.shape[::-1] if transposed else rows.shape
    if rows.vector:
        shape = shape[:1]
    elif rows.inner_shape:
        shape = (shape[0], *rows.inner_shape)
    output_dtype = _choose_dtype(path, rows.dtype, dtype)
    return OutputTensor(name, output_dtype, shape, (rows,), transposed, parameter.sources)


def _stack(stack: OutputTensor | None, expert: OutputTensor) -> OutputTensor:
    """Append one expert to the stack of a layer, along a new first axis."""
    if stack is None:
        return replace(expert, shape=(1, *expert.shape))
    return replace(
        stack,
        shape=(stack.shape[0] + 1, *expert.shape),
        parts=(*stack.parts, *expert.parts),
        sources=_merge_unique(stack.sources, expert.sources),
    )


def _merge_unique(*name_lists: Iterable[str]) -> tuple[str, ...]:
    """Return all names in their order, each once."""
    return tuple(dict.fromkeys(name for names in name_lists for name in names))


def _merge_first_axes(tensor: OutputTensor) -> OutputTensor:
    first, second, *other_lengths = tensor.shape
    return replace(tensor, shape=(first * second, *other_lengths))


def _choose_dtype(path: str, source_dtype: str, dtype: str | None) -> str:
    """Return the dtype to write.

    A router's bias correction keeps its dtype, because it is a sum over many steps.
    """
    is_converted = source_dtype in _FLOATING and not path.endswith("expert_bias")
    if dtype is None or not is_converted:
        return source_dtype
    return dtype


def _find_name(path: str, target: TargetLayout, layers_with_router: set[str]) -> tuple[str, str]:
    """Return the key in the tables and the name in the target. Raises DumpError without one."""
    if path in target.exact:
        return path, target.exact[path]
    prediction_match = _PREDICTION.match(path)
    if prediction_match is not None:
        depth, module, leaf = prediction_match.groups()
        if module in target.predictions:
            number = target.first_prediction + int(depth)
            return module, f"{target.predictions[module].format(number)}.{leaf}"
    number_match = _EXPERT_NUMBER.search(path)
    expert = number_match[0] if number_match else ""
    layer_match = _LAYER.match(path)
    if layer_match is None:
        module, _, leaf = path.rpartition(".")
        table, prefix = target.model, ""
    else:
        layer_path, module, leaf = layer_match[1], layer_match[4], layer_match[5]
        table = target.block
        if layer_path not in layers_with_router:
            table = {**target.block, **target.dense}
        prefix = target.layer_prefix.format(layer_match["layer"])
        if layer_match["depth"] is not None:
            number = target.first_prediction + int(layer_match["depth"])
            prefix = _get_prediction_prefix(path, target).format(number)
        module = _EXPERT_NUMBER.sub("{}", module)
    parameter = f"{module}.{leaf}"
    if parameter in target.stacked:
        return parameter, prefix + target.stacked[parameter]
    full_name = table.get(parameter)
    if full_name is not None:
        return module, prefix + full_name.format(expert)
    if module in table:
        return module, f"{prefix}{table[module].format(expert)}.{leaf}"
    raise _make_name_error(path, target)


def _get_prediction_prefix(path: str, target: TargetLayout) -> str:
    prefix = target.predictions.get("block")
    if prefix is None:
        raise _make_name_error(path, target)
    return f"{prefix}."


def _make_name_error(path: str, target: TargetLayout) -> DumpError:
    kind = " of multi-token prediction" if path.startswith("mtp.") else ""
    return DumpError(
        f"{target.name} has no name for {path}{kind}; convert to another format, or remove it from "
        "the source"
    )


def _fuse_parts(
    parameters: Mapping[str, _Parameter], fusion: Fusion, groups: int
) -> dict[str, _Parameter]:
    """Join every complete set of parts, in the place of its first; keep all other parameters."""
    first_part = re.compile(rf"^({fusion.prefix}\.){fusion.parts[0]}\.(\w+)$")
    result: dict[str, _Parameter] = {}
    used_paths: set[str] = set()
    for path, parameter in parameters.items():
        match = first_part.match(path)
        part_paths = []
        if match is not None:
            part_paths = [f"{match[1]}{part}.{match[2]}" for part in fusion.parts]
        if match is None or not all(part_path in parameters for part_path in part_paths):
            if path not in used_paths:
                result[path] = parameter
            continue
        parts = [parameters[part_path] for part_path in part_paths]
        fused_path = f"{match[1]}{fusion.fused}.{match[2]}"
        result[fused_path] = _Parameter(
            _join_parts(fused_path, [part.rows for part in parts], fusion, groups),
            _merge_unique(*(part.sources for part in parts)),
        )
        used_paths.update(part_paths)
        for part_path in part_paths:  # parts that came before the first
            result.pop(part_path, None)
    return result


def _join_parts(fused_path: str, parts: list[Rows], fusion: Fusion, groups: int) -> Rows:
    """Return the rows of the parts in the order of the fusion's layout."""
    sizes = [part.shape[0] for part in parts]
    if len({(part.dtype, part.shape[1]) for part in parts}) > 1:
        raise DumpError(
            f"{fused_path}: its parts differ in dtype or width, so they cannot be one weight"
        )
    n_groups = {"grouped": groups, "concatenated": 1, "interleaved": min(sizes)}[fusion.layout]
    if n_groups == 0:
        raise DumpError(
            f"{fused_path}: the number of heads is unknown; give --heads N --query-groups N"
        )
    order = build_fused_order(sizes, n_groups)
    if order is None:
        raise DumpError(
            f"{fused_path}: {' + '.join(map(str, sizes))} rows do not divide into "
            f"{n_groups} query groups"
        )
    return join_rows(parts, order)
