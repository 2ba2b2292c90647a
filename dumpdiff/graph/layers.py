"""Where in the model an op belongs: from the parameters up and down its dataflow, because printed scopes lie.

In graph mode 73 of 241 forward ops of a real dump carry another layer's scope, and with a function as top cell
none has any; the names of the parameters are always right.
"""

from __future__ import annotations

import numpy as np

from ..model.trace import BACKWARD, FORWARD
from ..rulebook import Rules
from .dataflow import Flow

_MOST = 8  # nearest modules that are kept: more have no path in common anyway


def locate_ops(flow: Flow, rules: Rules) -> list[str]:
    """Canonical module path of each op, '' if unknown; 'layers.1.attention' for an op between modules of one layer.

    An op that reads a parameter belongs to the parameter's module. One that feeds only the parameters of a single norm
    belongs to that norm. Others get the longest path that the nearest parameters up and down have in common. Module
    trees that the recorder itself kept (msprobe's construct.json, module dumps) are taken as they are. A gradient op
    belongs to its forward op, else to the latest forward value that it reads.
    """
    recorded = _recorded(flow, rules)
    own = _own(flow, rules)
    up, down = _nearest(flow, own, forwards=True), _nearest(flow, own, forwards=False)
    vectors = _vector_modules(flow, rules)
    found: list[str] = []
    phase = flow.trace.ops["phase"].tolist()
    forward = flow.trace.ops["forward"].tolist()
    producer = flow.classes["producer"].tolist()
    for op in range(len(phase)):
        if recorded[op] or own[op]:
            found.append(recorded[op] or own[op])
        elif phase[op] == FORWARD and (norm := _norm_of(flow, op, down)) in vectors:
            found.append(norm)
        elif phase[op] == FORWARD:
            found.append(_common([*up[op], *down[op]]))
        elif forward[op] >= 0:
            found.append(found[forward[op]])
        elif phase[op] == BACKWARD:
            makers = [
                producer[v]
                for v in flow.reads[op]
                if 0 <= producer[v] < len(found) and phase[producer[v]] == FORWARD
            ]
            found.append(found[max(makers)] if makers else "")
        else:
            found.append("")
    return found


def _norm_of(flow: Flow, op: int, down: list[frozenset[str]]) -> str:
    """The only module that an op feeds; empty if there are more, or if it joins outer values, as a residual does."""
    if len(down[op]) != 1:
        return ""
    makers = [int(flow.producers[v]) for v in flow.reads[op] if flow.producers[v] >= 0]
    joins = len(makers) > 1 and not any(down[maker] == down[op] for maker in makers)
    return "" if joins else next(iter(down[op]))


def _recorded(flow: Flow, rules: Rules) -> list[str]:
    """Canonical scopes where the recorder hooked real modules; graph-mode scopes do not count."""
    if flow.trace.source.format == "mindspore":
        return [""] * len(flow.trace.ops)
    return [rules.resolve_scope(scope) if scope else "" for scope in flow.trace.ops["scope"]]


def _own(flow: Flow, rules: Rules) -> list[str]:
    """The module of the parameter that an op reads or whose gradient it makes."""
    modules = [_module(rules, name) for name in flow.classes["parameter"]]
    gradients = [_module(rules, name) for name in flow.classes["gradient_of"]]
    own = []
    for reads, writes in zip(flow.reads, flow.writes, strict=True):
        named = [modules[v] for v in reads if modules[v]] or [
            gradients[v] for v in writes if gradients[v]
        ]
        own.append(_common(named) if named else "")
    return own


def _module(rules: Rules, parameter: str) -> str:
    if not parameter:
        return ""
    return (rules.resolve_parameter(parameter) or parameter).rpartition(".")[0]


def _vector_modules(flow: Flow, rules: Rules) -> set[str]:
    """Modules all of whose parameters are vectors: norms."""
    vectors: dict[str, bool] = {}
    shapes = flow.tensors["shape"].to_numpy()
    for name, tensor in zip(flow.classes["parameter"], flow.classes["tensor"], strict=True):
        if name:
            module, shape = _module(rules, name), shapes[tensor]
            vectors[module] = vectors.get(module, True) and shape is not None and len(shape) == 1
    return {module for module, vector in vectors.items() if vector}


def _nearest(flow: Flow, own: list[str], *, forwards: bool) -> list[frozenset[str]]:
    """Modules of the nearest parameter-reading forward ops: with ``forwards`` those above each op, else those below."""
    phase = (flow.trace.ops["phase"] == FORWARD).to_numpy() & (
        flow.trace.ops["level"] == "op"
    ).to_numpy()
    producer = flow.classes["producer"].tolist()
    ops = np.flatnonzero(phase).tolist()
    near: list[frozenset[str]] = [frozenset()] * len(own)
    only: dict[str, frozenset[str]] = {}
    for op in ops if forwards else reversed(ops):
        if forwards:
            neighbours = [producer[v] for v in flow.reads[op] if producer[v] >= 0]
        else:
            neighbours = [
                reader for v in flow.writes[op] for reader in flow.consumers[v] if phase[reader]
            ]
        found = {
            only.setdefault(own[n], frozenset([own[n]])) if own[n] else near[n]
            for n in neighbours
            if n != op
        }
        near[op] = (
            next(iter(found))
            if len(found) == 1
            else frozenset(sorted(frozenset().union(*found))[:_MOST])
        )
    return near


def _common(paths: list[str]) -> str:
    """Longest common leading part of dotted paths, '' if that names no layer."""
    if not paths:
        return ""
    parts = [path.split(".") for path in paths]
    shared = []
    for step in zip(*parts, strict=False):
        if len(set(step)) > 1:
            break
        shared.append(step[0])
    common = ".".join(shared)
    return "" if common in ("layers", "model", "mtp") else common
