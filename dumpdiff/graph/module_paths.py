"""The place of each op in the model: found from the parameters up and down its dataflow.

Printed scopes are unreliable. In graph mode 73 of 241 forward ops of a real dump carry the scope of
another layer, and with a function as top cell no op has a scope. The names of parameters are always
right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..model.int_lists import IntLists
from ..model.trace import BACKWARD, FORWARD
from ..rulebook import Rules
from ..rulebook.names import split_segments
from .dataflow import Flow

#: Nearest modules that are kept per op; more have no path in common anyway.
_MAX_MODULES = 8
#: Paths that name no layer.
_GENERIC_PATHS = ("layers", "model", "mtp")


def locate_ops(flow: Flow, rules: Rules) -> list[str]:
    """Return the canonical module path of each op, '' if unknown.

    An op between the modules of a layer gets a path such as 'layers.1.attention'. An op that reads
    a parameter belongs to the parameter's module. One that feeds only the parameters of a single
    norm belongs to that norm. Others get the longest path that the nearest parameters up and down
    have in common. Module trees that the recorder kept (msprobe's construct.json, module dumps) are
    used as they are. A gradient op belongs to its forward op, else to the latest forward value that
    it reads.
    """
    scopes = _read_recorded_scopes(flow)
    names = {*flow.list_column("parameter"), *flow.list_column("gradient_of")}
    scope_paths, modules = rules.resolve_modules(scopes, names)
    known_paths = [scope_paths[scope] for scope in scopes]
    parameter_paths = _find_parameter_paths(flow, modules)
    is_placed = [
        bool(known or own) for known, own in zip(known_paths, parameter_paths, strict=True)
    ]
    modules_above = _find_nearest_modules(flow, parameter_paths, is_placed, forwards=True)
    modules_below = _find_nearest_modules(flow, parameter_paths, is_placed, forwards=False)
    norms = _find_norms(flow, modules)
    calls = flow.calls
    paths: list[str] = []
    for op, phase in enumerate(flow.phases):
        known_path = known_paths[op] or parameter_paths[op]
        if known_path:
            paths.append(known_path)
        elif phase == FORWARD:
            module = _find_only_module_below(flow, op, modules_below)
            if module not in norms:
                module = find_common_path([*modules_above[op], *modules_below[op]])
            paths.append(module or _read_plain_path(scopes[op]))
        elif calls[op] >= 0:
            paths.append(paths[calls[op]])
        elif phase == BACKWARD:
            producer = _find_latest_forward_producer(flow, op)
            paths.append(paths[producer] if producer >= 0 else "")
        else:
            paths.append("")
    return paths


def _find_latest_forward_producer(flow: Flow, op: int) -> int:
    """Return the last forward op before an op that produced one of its inputs, -1 if none did."""
    producers = [int(flow.producers[value]) for value in flow.reads[op]]
    forward_producers = [
        producer
        for producer in producers
        if 0 <= producer < op and flow.phases[producer] == FORWARD
    ]
    return max(forward_producers, default=-1)


def _find_only_module_below(flow: Flow, op: int, modules_below: list[frozenset[str]]) -> str:
    """Return the only module that an op feeds.

    '' if there are several, or if the op joins values from outside, as a residual sum does.
    """
    modules = modules_below[op]
    if len(modules) != 1:
        return ""
    producers = [flow.producers[value] for value in flow.reads[op]]
    input_modules = [modules_below[producer] for producer in producers if producer >= 0]
    if len(input_modules) > 1 and modules not in input_modules:
        return ""
    (module,) = modules
    return module


def _read_recorded_scopes(flow: Flow) -> list[str]:
    """Return the scopes of ops where the recorder hooked real modules; not those of graph mode."""
    if flow.trace.source.format == "mindspore":
        return [""] * len(flow.trace.ops)
    return [str(scope) for scope in flow.trace.ops["scope"].tolist()]


def _read_plain_path(scope: str) -> str:
    """Return the module path in a scope that no rule matches, '' if it names no module."""
    path = ".".join(split_segments(scope))
    return "" if path in _GENERIC_PATHS else path


def _find_parameter_paths(flow: Flow, modules: Mapping[str, str]) -> list[str]:
    """Return per op the module of the parameter that it reads or whose gradient it produces."""
    paths = np.full(len(flow.trace.ops), "", dtype=object)
    is_open = np.ones(len(paths), dtype=bool)
    for column, lists in (("parameter", flow.reads), ("gradient_of", flow.writes)):
        codes, names = pd.factorize(flow.classes[column])
        path_of_name = np.array([modules[name] for name in names], dtype=object)
        # numbered in the order of the paths; 0 for no module
        known_paths, numbers = np.unique(path_of_name.astype(str), return_inverse=True)
        if not len(known_paths) or known_paths[0] != "":
            known_paths, numbers = np.append("", known_paths), numbers + 1
        path_numbers = numbers[codes][lists.values]
        has_path = (path_numbers > 0) & is_open[lists.rows]
        paths_of = IntLists.from_pairs(len(lists), lists.rows[has_path], path_numbers[has_path])
        is_open[lists.rows[has_path]] = False
        own_paths = np.array([find_common_path([path]) for path in known_paths], dtype=object)
        ops = np.flatnonzero(paths_of.counts)
        paths[ops] = own_paths[paths_of.first_values[ops]]
        for op in np.flatnonzero(paths_of.counts > 1).tolist():
            op_paths = sorted({str(known_paths[number]) for number in paths_of[op]})
            paths[op] = find_common_path(op_paths)
    path_list: list[str] = paths.tolist()
    return path_list


def _find_norms(flow: Flow, modules: Mapping[str, str]) -> set[str]:
    """Return the modules all of whose parameters are vectors."""
    is_norm: dict[str, bool] = {}
    for value, name in enumerate(flow.list_column("parameter")):
        if not name:
            continue
        module, shape = modules[name], flow.shapes[value]
        is_vector = shape is not None and len(shape) == 1
        is_norm[module] = is_norm.get(module, True) and is_vector
    return {module for module in is_norm if is_norm[module]}


def _find_nearest_modules(
    flow: Flow, parameter_paths: list[str], is_placed: Sequence[bool], *, forwards: bool
) -> list[frozenset[str]]:
    """Return per op the modules of the nearest forward ops that read parameters.

    With ``forwards`` these are the modules above each op, else those below it. Of ops whose place
    is known (``is_placed``), they are only given where others are placed by them.
    """
    is_included = (flow.flag_phase(FORWARD) & ~flow.is_module).tolist()
    find_neighbors = _build_neighbor_function(flow, is_included, forwards=forwards)
    ops = _collect_searched_ops(flow, is_included, is_placed, parameter_paths, find_neighbors)
    nearest_modules: list[frozenset[str]] = [frozenset()] * len(parameter_paths)
    module_sets: dict[str, frozenset[str]] = {}  # one shared set per module
    for op in ops if forwards else reversed(ops):
        neighbors = find_neighbors(op)
        neighbor_modules = set()
        for neighbor in neighbors:
            path = parameter_paths[neighbor]
            if neighbor == op:
                continue
            if path:
                neighbor_modules.add(module_sets.setdefault(path, frozenset([path])))
            else:
                neighbor_modules.add(nearest_modules[neighbor])
        if len(neighbor_modules) == 1:
            nearest_modules[op] = next(iter(neighbor_modules))
        else:
            union: frozenset[str] = frozenset().union(*neighbor_modules)
            nearest_modules[op] = frozenset(sorted(union)[:_MAX_MODULES])
    return nearest_modules


def _build_neighbor_function(
    flow: Flow, is_included: Sequence[bool], *, forwards: bool
) -> Callable[[int], list[int]]:
    """Return a function of an op: the ops that it reads from, else those that read from it."""
    producers = flow.list_column("producer")

    def list_producers(op: int) -> list[int]:
        return [producers[value] for value in flow.reads[op] if producers[value] >= 0]

    def list_consumers(op: int) -> list[int]:
        consumers = [consumer for value in flow.writes[op] for consumer in flow.consumers[value]]
        return [consumer for consumer in consumers if is_included[consumer]]

    return list_producers if forwards else list_consumers


def _collect_searched_ops(
    flow: Flow,
    is_included: Sequence[bool],
    is_placed: Sequence[bool],
    parameter_paths: Sequence[str],
    find_neighbors: Callable[[int], list[int]],
) -> list[int]:
    """Return the ops, in order, whose nearest modules decide on the place of an op.

    These are the ops that have no place, those that they read from, and what lies between them
    and the next ops that read parameters.
    """
    is_open = flow.flag_phase(FORWARD) & ~np.array(is_placed, dtype=bool)
    open_ops: list[int] = np.flatnonzero(is_open).tolist()
    stack = list(open_ops)
    producers = flow.list_column("producer")
    for op in open_ops:
        stack += [producers[value] for value in flow.reads[op]]
    searched_ops: set[int] = set()
    while stack:
        op = stack.pop()
        if op < 0 or op in searched_ops or not is_included[op]:
            continue
        searched_ops.add(op)
        stack += [neighbor for neighbor in find_neighbors(op) if not parameter_paths[neighbor]]
    return sorted(searched_ops)


def find_common_path(paths: Sequence[str]) -> str:
    """Return the longest common leading part of dotted paths, '' if it names no layer."""
    if not paths:
        return ""
    common_path = paths[0]
    if len(paths) > 1:
        common_steps = []
        for steps in zip(*(path.split(".") for path in paths), strict=False):
            if len(set(steps)) > 1:
                break
            common_steps.append(steps[0])
        common_path = ".".join(common_steps)
    return "" if common_path in _GENERIC_PATHS else common_path
