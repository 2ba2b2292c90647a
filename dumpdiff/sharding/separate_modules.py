"""Modules that each rank has of its own, such as the experts of a rank, gathered on one rank."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..graph import Flow, build_flow
from ..model.arrays import Flags, Floats, Ints
from ..model.trace import Trace
from .concatenation import concatenate_traces
from .micro_batches import select_ops
from .value_index import ValueIndex

#: A module that is one of several of a name: the path up to its number, and the number.
_NUMBERED_MODULE = re.compile(r"^(?P<front>.*\.)(?P<number>\d+)\.")
#: Relative difference up to which a parameter of one rank is a whole parameter of the other run.
_PARAMETER_ERROR = 1e-4
_STATISTICS = ("max", "min", "mean", "norm")
_NAMED_COLUMNS = ("parameter", "gradient_of", "update_of")


def gather_separate_modules(
    flows: Sequence[Flow], names: Sequence[str], other_flows: Sequence[Flow]
) -> list[Flow]:
    """Return the flows, with the modules that each rank has of its own on the first rank.

    They are numbered on, in the order of the ranks. Such are modules of one name whose every
    parameter is another one on each rank, and a whole parameter of the other run. Nothing changes
    if several ranks share such modules.
    """
    modules = _find_separate_modules(flows, other_flows)
    if not modules:
        return list(flows)
    counts = Counter(module.rpartition(".")[0] for module in modules)
    base = flows[0]
    is_inside = [_flag_inside(flow, modules) for flow in flows]
    block_ends = _list_block_ends(is_inside[0])
    base_ops = {name: op for op, name in enumerate(base.trace.ops["name"].tolist())}
    n_ops = len(base.trace.ops)
    traces = [replace(base.trace, tensors=base.tensors)]
    sort_keys = [np.stack([np.arange(n_ops), np.zeros(n_ops, dtype=int)])]
    remaining_flows = []
    for rank, flow in enumerate(flows[1:], 1):
        trace = select_ops(flow, is_inside[rank])
        positions = [block_ends[base_ops.get(name, -1)] for name in trace.ops["name"]]
        sort_keys.append(np.stack([positions, np.full(len(positions), rank)]))
        traces.append(_rename(trace, counts, rank, names[rank]))
        remaining_flows.append(build_flow(select_ops(flow, ~is_inside[rank])))
    gathered = _attach_parents(concatenate_traces(traces, sort_keys), base.trace)
    return [build_flow(gathered), *remaining_flows]


def _find_separate_modules(flows: Sequence[Flow], other_flows: Sequence[Flow]) -> list[str]:
    """Return the scopes of numbered modules that are others on each rank; [] if there are none."""
    tables = [_collect_parameters(flow) for flow in flows]
    index = _index_parameters(other_flows)
    names_of: defaultdict[str, list[str]] = defaultdict(list)
    for name in tables[0].index:
        match = _NUMBERED_MODULE.match(name)
        if match:
            names_of[match.group().removesuffix(".")].append(name)
    modules = []
    for module, names in names_of.items():
        if all(_is_separate(name, tables, index) for name in names):
            modules.append(module)
    return modules


def _collect_parameters(flow: Flow) -> pd.DataFrame:
    """Return size and statistics of the parameters of a rank, by name."""
    table = flow.tensors
    named = table[(table["parameter"] != "").to_numpy()].drop_duplicates("parameter")
    return named.set_index("parameter")[["size", *_STATISTICS]]


def _index_parameters(flows: Sequence[Flow]) -> ValueIndex:
    """Return the parameters of a run by their statistics."""
    table = pd.concat([_collect_parameters(flow) for flow in flows], ignore_index=True)
    statistics: Floats = table[list(_STATISTICS)].to_numpy(dtype=float)
    return ValueIndex(table["size"].to_numpy(), statistics, np.arange(len(table)))


def _is_separate(name: str, tables: Sequence[pd.DataFrame], index: ValueIndex) -> bool:
    """Return whether every rank has another whole parameter of this name."""
    if any(name not in table.index for table in tables):
        return False
    rows = pd.DataFrame([table.loc[name] for table in tables])
    statistics: Floats = rows[list(_STATISTICS)].to_numpy(dtype=float)
    errors = np.full(len(rows), _PARAMETER_ERROR)
    entries = index.find(rows["size"].to_numpy(dtype=int), statistics, errors)
    return bool((entries >= 0).all()) and len(np.unique(entries)) == len(entries)


def _flag_inside(flow: Flow, modules: Sequence[str]) -> Flags:
    """Return (ops,) whether each op belongs to one of the modules."""
    scopes = flow.trace.ops["scope"]
    unique_scopes = {scope: _is_inside(scope, modules) for scope in scopes.unique()}
    flags: Flags = scopes.map(unique_scopes).to_numpy(dtype=bool)
    return flags


def _is_inside(scope: str, modules: Sequence[str]) -> bool:
    return any(scope == module or scope.startswith(f"{module}.") for module in modules)


def _list_block_ends(is_inside: Flags) -> Ints:
    """Return (ops,) the last op of the stretch of ops inside the modules that an op is in."""
    ends = np.arange(len(is_inside))
    for op in reversed(range(len(is_inside) - 1)):
        if is_inside[op] and is_inside[op + 1]:
            ends[op] = ends[op + 1]
    return ends


def _rename(trace: Trace, counts: Mapping[str, int], rank: int, rank_name: str) -> Trace:
    """Return the ops of a rank's modules with the rank in their names, the modules numbered on."""

    def shift(name: str) -> str:
        for front, count in counts.items():
            if name.startswith(f"{front}."):
                number, dot, rest = name[len(front) + 1 :].partition(".")
                return f"{front}.{int(number) + rank * count}{dot}{rest}"
        return name

    ops, tensors = trace.ops.copy(), trace.tensors.copy()
    ops["scope"] = ops["scope"].map({scope: shift(scope) for scope in ops["scope"].unique()})
    ops["name"] = pd.Series([f"{name} ({rank_name})" for name in ops["name"]], dtype=object)
    for column in _NAMED_COLUMNS:
        new_names = {name: shift(name) for name in tensors[column].unique()}
        tensors[column] = tensors[column].map(new_names)
    return replace(trace, ops=ops, tensors=tensors)


def _attach_parents(trace: Trace, base: Trace) -> Trace:
    """Return the trace with the modules of other ranks inside the same module as the first rank's.

    ``base`` is the trace of the first rank alone.
    """
    numbers = {name: op for op, name in enumerate(trace.ops["name"].tolist())}
    base_names = base.ops["name"].tolist()
    parent_names = {
        name: base_names[parent]
        for name, parent in zip(base_names, base.ops["parent"].tolist(), strict=True)
        if parent >= 0
    }
    parents = trace.ops["parent"].to_numpy(copy=True)
    for name, op in numbers.items():
        own_name, _, rank_name = name.rpartition(" (")
        if rank_name and parents[op] < 0 and own_name in parent_names:
            parents[op] = numbers[parent_names[own_name]]
    return replace(trace, ops=trace.ops.assign(parent=parents))
