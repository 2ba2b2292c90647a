"""One compiled graph as a dataflow of executed ops: files joined, ops renumbered, tuples unfolded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...model.errors import DumpError
from ...model.trace import Problem
from .ir import read_ir
from .nodes import (
    CONSTANT,
    NODE,
    NOTHING,
    PARAMETER,
    Graph,
    Input,
    Node,
    Output,
    Parameter,
    parse_user_frames,
)
from .op_types import find_updated_inputs, is_in_place
from .pb import read_pb, read_pb_names

_FILE = re.compile(r"ms_output_trace_code_graph_(\d{1,9})\.(pb|ir)")
_NUMBER = re.compile(r"-op\d+$")
_MOST_SLOTS = 100_000  #: of one op
_IR_NAME = re.compile(r"^ +# Fullname with scope: \(([^\n]*)\)$", re.MULTILINE)

#: Nodes that move no data: the runtime never launches them, so nothing of them is dumped.
_TUPLES = frozenset({"MakeTuple", "MakeList"})
_ITEMS = frozenset({"TupleGetItem", "ListGetItem"})
_PASSES_FIRST = frozenset({"Depend", "Load", "Return", "return"})
_SILENT = frozenset({"UpdateState", "Partial", "Switch", "SwitchLayer", "Call", "call"})


class Slot(NamedTuple):
    """One input of an executed op, after tuples are unfolded; at most one of the first three is set."""

    op: int = -1  #: which executed op made it
    output: int = 0  #: which of its outputs
    parameter: str = ""
    constant: Input | None = None


@dataclass(frozen=True)
class GraphOp:
    """One executed op."""

    kind: str
    printed_name: str  #: full name in the graph file
    name: str  #: full name at run time, where it is numbered anew
    inputs: tuple[Slot | None, ...]  #: None holds a place where nothing is ever dumped
    outputs: tuple[Output, ...]
    frames: str

    @property
    def stack(self) -> tuple[tuple[str, int, str], ...]:
        """The user's frames, innermost first: file, line, code."""
        return parse_user_frames(self.frames)


@dataclass(frozen=True)
class Dataflow:
    """The executed ops of one graph, in topological order."""

    ops: Sequence[GraphOp]
    parameters: Mapping[str, Parameter]
    results: frozenset[int]  #: ops whose outputs leave the graph
    files: tuple[str, ...]  #: base names of the graph files read


def find_overwritten_outputs(flow: Dataflow) -> frozenset[tuple[int, int]]:
    """(op, output) whose memory, when it was dumped, no longer held what the op had computed.

    Everything of an op is dumped after it ran: an op that updates its inputs leaves its outputs stale, and what it
    updated may be the output of another op (fp16 training casts a weight up, updates the copy, and casts it down).
    """
    found: set[tuple[int, int]] = set()
    for number, op in enumerate(flow.ops):
        if not is_in_place(op.kind):
            continue
        found.update((number, output) for output in range(max(1, len(op.outputs))))
        updated = find_updated_inputs(op.kind)
        found.update(
            (slot.op, slot.output)
            for at, slot in enumerate(op.inputs)
            if slot is not None and slot.op >= 0 and updated is not None and at in updated
        )
    return frozenset(found)


def find_graph_files(folder: Path) -> dict[int, dict[str, Path]]:
    """Graph id -> {'pb': path, 'ir': path}, in the order of ids; empty if ``folder`` holds no graph file."""
    found: dict[int, dict[str, Path]] = {}
    if folder.is_dir():
        for path in folder.iterdir():
            name = _FILE.fullmatch(path.name)
            if name:
                found.setdefault(int(name[1]), {})[name[2]] = path
    return dict(sorted(found.items()))


def read_dataflow(folder: Path, graph_id: int) -> tuple[Dataflow | None, list[Problem]]:
    """The dataflow of one graph, None if its files are absent or unusable (then a problem says why)."""
    files = find_graph_files(folder)
    if graph_id not in files:
        return None, []
    graph, problems = _read(files[graph_id])
    if graph is None:
        return None, problems
    counters: Counter[str] = Counter()
    for earlier, paths in files.items():
        if earlier < graph_id:
            counters.update(_prefixes(_names(paths, problems)))
    names = _renumbered([node.name for node in graph.nodes], counters)
    read = tuple(path.name for path in files[graph_id].values())
    ops, results = _unfolded(graph, names)
    return Dataflow(ops, graph.parameters, results, read), problems


def _read(paths: Mapping[str, Path]) -> tuple[Graph | None, list[Problem]]:
    problems: list[Problem] = []
    graphs: dict[str, Graph] = {}
    for spelling, reader in (("pb", read_pb), ("ir", read_ir)):
        if spelling in paths:
            try:
                graphs[spelling] = reader(paths[spelling])
            except DumpError as error:
                problems.append(
                    Problem(f"graphs/{paths[spelling].name}", str(error).partition(": ")[2])
                )
    if len(graphs) == 2:
        return merge_graphs(graphs["pb"], graphs["ir"]), problems
    return next(iter(graphs.values()), None), problems


def merge_graphs(pb: Graph, ir: Graph) -> Graph:
    """The nodes of the .pb, with what only the .ir knows: tensor constants, shapes in tuples, what is a weight."""
    printed = {node.name: node for node in ir.nodes}
    nodes = [_enriched(node, printed.get(node.name)) for node in pb.nodes]
    parameters = dict(pb.parameters)
    if ir.parameters:  # loop variables have a name in the .pb only
        for name, parameter in pb.parameters.items():
            weight = ir.parameters[name].is_weight if name in ir.parameters else False
            parameters[name] = parameter._replace(weight=weight)
    return Graph(nodes, parameters)


def _enriched(node: Node, printed: Node | None) -> Node:
    if printed is None or printed.kind != node.kind:
        return node
    inputs, outputs = node.inputs, node.outputs
    if len(printed.inputs) == len(inputs):
        inputs = tuple(
            text
            if said.kind == CONSTANT and said.shape is None and text.kind in {CONSTANT, NOTHING}
            else said
            for said, text in zip(inputs, printed.inputs, strict=True)
        )
    if len(printed.outputs) == len(outputs):
        outputs = tuple(
            Output(said.dtype or text.dtype, said.shape if said.shape is not None else text.shape)
            for said, text in zip(outputs, printed.outputs, strict=True)
        )
    return node._replace(inputs=inputs, outputs=outputs, frames=node.frames or printed.frames)


def _names(paths: Mapping[str, Path], problems: list[Problem]) -> list[str]:
    """Only the names of a graph's nodes; an unreadable graph is a problem, for it shifts the numbers after it."""
    try:
        if "pb" in paths:
            return read_pb_names(paths["pb"])
        return _IR_NAME.findall(paths["ir"].read_text(encoding="utf-8", errors="replace"))
    except (DumpError, OSError) as error:
        problems.append(
            Problem(
                f"graphs/{next(iter(paths.values())).name}", f"op numbers may be shifted: {error}"
            )
        )
        return []


def _prefixes(names: Sequence[str]) -> list[str]:
    return [_NUMBER.sub("", name) for name in names if _NUMBER.search(name)]


def _renumbered(names: Sequence[str], counters: Counter[str]) -> list[str]:
    """Names as at run time: the n-th node of one scope and type gets ``-op{n}``, counted on through all graphs.

    On CPU and GPU the graph files are written before MindSpore numbers its nodes anew (graph_compiler.cc,
    ``ResetNodeId``), the tensors after; taking the printed numbers joins 2 to 14 % of the ops wrongly, without a sign.
    """
    result = []
    for name in names:
        prefix = _NUMBER.sub("", name)
        if prefix == name:
            result.append(name)
            continue
        result.append(f"{prefix}-op{counters[prefix]}")
        counters[prefix] += 1
    return result


_Value = (
    Slot | None | list["_Value"]
)  # one tensor, a place nothing is dumped for, or a tuple of such


def _unfolded(graph: Graph, names: Sequence[str]) -> tuple[list[GraphOp], frozenset[int]]:
    """Executed ops only, and which of them the last node returns.

    MakeTuple is spread over its reader's slots; TupleGetItem, Depend and Load are looked through.
    """
    values: dict[str, _Value] = {}
    ops: list[GraphOp] = []
    for node, name in zip(graph.nodes, names, strict=True):
        arguments = [_value(said, values) for said in node.inputs]
        if node.kind in _TUPLES:
            values[node.key] = arguments
        elif node.kind in _ITEMS:
            values[node.key] = _item(arguments)
        elif node.kind in _PASSES_FIRST:
            values[node.key] = arguments[0] if arguments else None
        elif node.kind in _SILENT:
            values[node.key] = None
        else:
            here = len(ops)
            values[node.key] = (
                [Slot(here, output) for output in range(len(node.outputs))]
                if len(node.outputs) > 1
                else Slot(here)
            )
            ops.append(
                GraphOp(node.kind, node.name, name, _flat(arguments), node.outputs, node.frames)
            )
    last = _flat([values[graph.nodes[-1].key]]) if graph.nodes else ()
    return ops, frozenset(slot.op for slot in last if slot is not None and slot.op >= 0)


def _value(said: Input, values: Mapping[str, _Value]) -> _Value:
    if said.kind == NODE:
        return values.get(said.name)
    if said.kind == PARAMETER:
        return Slot(parameter=said.name)
    return Slot(constant=said) if said.kind == CONSTANT else None


def _item(arguments: Sequence[_Value]) -> _Value:
    """Element of a tuple: (tuple, index)."""
    if len(arguments) < 2 or not isinstance(arguments[1], Slot) or arguments[1].constant is None:
        return None
    index = int((arguments[1].constant.values or (0,))[0])
    whole = arguments[0]
    if isinstance(whole, list):
        return whole[index] if -len(whole) <= index < len(whole) else None
    return whole._replace(output=index) if isinstance(whole, Slot) and whole.op >= 0 else whole


def _flat(arguments: list[_Value]) -> tuple[Slot | None, ...]:
    """The slots of an op; not by recursion, since nobody vouches for the depth of the tuples."""
    flat: list[Slot | None] = []
    pending: list[_Value] = arguments[::-1]
    while pending and len(flat) < _MOST_SLOTS:
        value = pending.pop()
        if isinstance(value, list):
            pending += value[::-1]
        else:
            flat.append(value)
    return tuple(flat)
