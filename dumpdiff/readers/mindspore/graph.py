"""Read one compiled MindSpore graph (1.6 to 2.10) as a dataflow of executed ops.

The files are ``graphs/ms_output_trace_code_graph_N.pb`` and ``.ir``. Both are joined, ops get their
numbers at run time, and tuples are unfolded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...model.errors import DumpError
from ...model.input_files import read_input_text
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
from .op_types import find_running_statistics, find_updated_inputs, is_in_place, is_view
from .pb import read_pb, read_pb_names

_FILE = re.compile(r"ms_output_trace_code_graph_(\d{1,9})\.(pb|ir)")
_NUMBER = re.compile(r"-op\d+$")
_MAX_SLOTS = 100_000  #: inputs of one op; protects against a damaged graph with nested tuples
_IR_NAME = re.compile(r"^ +# Fullname with scope: \(([^\n]*)\)$", re.MULTILINE)

#: Nodes that move no data. The runtime never launches them, so nothing of them is dumped.
_TUPLES = frozenset({"MakeTuple", "MakeList"})
_ITEMS = frozenset({"TupleGetItem", "ListGetItem"})
_PASSES_FIRST = frozenset({"Depend", "Load", "Return", "return"})
_SILENT = frozenset({"UpdateState", "Partial", "Switch", "SwitchLayer", "Call", "call"})


class Slot(NamedTuple):
    """One input of an executed op, after tuples are unfolded.

    It is the output of an op, a parameter or a constant; at most one of the three is set.
    """

    op: int = -1  #: the executed op that produced it
    output: int = 0  #: output of that op
    parameter: str = ""
    constant: Input | None = None

    @property
    def is_op_output(self) -> bool:
        """Whether an executed op produced it."""
        return self.op >= 0


@dataclass(frozen=True)
class GraphOp:
    """One executed op."""

    kind: str
    printed_name: str  #: full name in the graph file
    name: str  #: full name at run time, with the op's number at run time
    inputs: tuple[Slot | None, ...]  #: None in places where nothing is ever dumped
    outputs: tuple[Output, ...]
    frames: str
    attributes: tuple[tuple[str, str], ...] = ()  #: of a communication: name, value as text

    @property
    def stack(self) -> tuple[tuple[str, int, str], ...]:
        """The user's frames, innermost first: file, line, code."""
        return parse_user_frames(self.frames)

    @property
    def op_inputs(self) -> list[Slot]:
        """The inputs that are outputs of other executed ops."""
        return [slot for slot in self.inputs if slot is not None and slot.is_op_output]


@dataclass(frozen=True)
class Dataflow:
    """The executed ops of one graph, in topological order."""

    ops: Sequence[GraphOp]
    parameters: Mapping[str, Parameter]
    results: frozenset[int]  #: ops whose outputs leave the graph
    files: tuple[str, ...]  #: base names of the graph files


def find_overwritten_outputs(flow: Dataflow) -> frozenset[tuple[int, int]]:
    """Return the (op, output) pairs whose memory was overwritten before it was dumped.

    Everything of an op is dumped after it ran. An op that updates its inputs has stale outputs, and
    the updated input may be the output of another op (fp16 training casts a weight up, updates the
    copy, and casts it down).
    """
    overwritten: set[tuple[int, int]] = set()
    for number, op in enumerate(flow.ops):
        if not is_in_place(op.kind):
            continue
        for output in range(max(1, len(op.outputs))):
            overwritten.add((number, output))
        updated_inputs = find_updated_inputs(op.kind)
        if updated_inputs is None:
            continue
        for index, slot in enumerate(op.inputs):
            if slot is not None and slot.is_op_output and index in updated_inputs:
                overwritten.add((slot.op, slot.output))
    return frozenset(overwritten)


def find_partial_views(flow: Dataflow) -> frozenset[tuple[int, int]]:
    """Return the (op, output) pairs that are views of a part of their memory.

    A chunk or a slice may be one, and so is each view of it.
    """
    partial_views: set[tuple[int, int]] = set()
    for number, op in enumerate(flow.ops):
        viewed = op.inputs[0] if op.inputs else None
        if viewed is None or not is_view(op.kind):
            continue
        is_part = (viewed.op, viewed.output) in partial_views
        viewed_size = _count_elements(get_slot_type(flow, viewed))
        for index, output in enumerate(op.outputs):
            if is_part or 0 <= _count_elements(output) < viewed_size:
                partial_views.add((number, index))
    return frozenset(partial_views)


def get_slot_type(flow: Dataflow, slot: Slot) -> Output | None:
    """Return dtype and shape of the tensor in a slot, as the graph gives them."""
    if slot.is_op_output:
        outputs = flow.ops[slot.op].outputs
        return outputs[slot.output] if slot.output < len(outputs) else None
    parameter = flow.parameters.get(slot.parameter)
    if parameter is not None:
        return Output(parameter.dtype, parameter.shape)
    if slot.constant is not None:
        return Output(slot.constant.dtype, slot.constant.shape)
    return None


def _count_elements(output: Output | None) -> int:
    """Return the number of elements, -1 if the shape is unknown."""
    return -1 if output is None or output.shape is None else math.prod(output.shape)


def find_updates(op: GraphOp) -> tuple[int, ...]:
    """Return the input slots that an op overwrites, so that they are dumped as after the op.

    Of an optimizer that is not known these are its parameters: whether it overwrites them or not,
    they are dumped as after the op.
    """
    updated_inputs = find_updated_inputs(op.kind)
    running_statistics = find_running_statistics(op.kind)
    updates = []
    for index, slot in enumerate(op.inputs):
        if slot is None:
            continue
        is_updated = updated_inputs is not None and index in updated_inputs
        is_updated |= updated_inputs is None and bool(slot.parameter)
        is_updated |= index in running_statistics and _is_training(op)
        if is_updated:
            updates.append(index)
    return tuple(updates)


def _is_training(op: GraphOp) -> bool:
    """Return whether a flag among the inputs of a batch norm says so. It is the only flag."""
    for slot in op.inputs:
        if slot is not None and slot.constant is not None and "bool" in slot.constant.dtype.lower():
            return bool((slot.constant.values or (0,))[0])
    return False


def find_graph_files(folder: Path) -> dict[int, dict[str, Path]]:
    """Return graph id -> {'pb': path, 'ir': path}, ordered by id.

    {} if ``folder`` holds no graph file.
    """
    files: dict[int, dict[str, Path]] = {}
    if folder.is_dir():
        for path in folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match:
                files.setdefault(int(match[1]), {})[match[2]] = path
    return dict(sorted(files.items()))


def read_dataflow(folder: Path, graph_id: int) -> tuple[Dataflow | None, list[Problem]]:
    """Return the dataflow of one graph, and problems with its files.

    The dataflow is None if the files are missing or unusable; a problem then gives the reason.
    """
    files = find_graph_files(folder)
    if graph_id not in files:
        return None, []
    graph, problems = _read_graph(files[graph_id])
    if graph is None:
        return None, problems
    counters: Counter[str] = Counter()
    for earlier_id, paths in files.items():
        if earlier_id < graph_id:
            counters.update(_list_numbered_prefixes(_read_names(paths, problems)))
    names = _renumber_names([node.name for node in graph.nodes], counters)
    file_names = tuple(path.name for path in files[graph_id].values())
    ops, results = _unfold_graph(graph, names)
    return Dataflow(ops, graph.parameters, results, file_names), problems


def _read_graph(paths: Mapping[str, Path]) -> tuple[Graph | None, list[Problem]]:
    problems: list[Problem] = []
    graphs: dict[str, Graph] = {}
    for suffix, reader in (("pb", read_pb), ("ir", read_ir)):
        if suffix not in paths:
            continue
        try:
            graphs[suffix] = reader(paths[suffix])
        except DumpError as error:
            reason = str(error).partition(": ")[2]
            problems.append(Problem(f"graphs/{paths[suffix].name}", reason))
    if len(graphs) == 2:
        return merge_graphs(graphs["pb"], graphs["ir"]), problems
    return next(iter(graphs.values()), None), problems


def merge_graphs(pb: Graph, ir: Graph) -> Graph:
    """Return the nodes of the .pb, completed from the .ir.

    Only the .ir has the values of tensor constants, shapes inside tuples, and which parameters are
    weights.
    """
    ir_nodes = {node.name: node for node in ir.nodes}
    nodes = [_complete_node(node, ir_nodes.get(node.name)) for node in pb.nodes]
    parameters = dict(pb.parameters)
    if ir.parameters:
        for name, parameter in pb.parameters.items():
            # loop variables have a name in the .pb only
            is_weight = ir.parameters[name].is_weight if name in ir.parameters else False
            parameters[name] = parameter._replace(is_weight=is_weight)
    return Graph(nodes, parameters)


def _complete_node(node: Node, ir_node: Node | None) -> Node:
    if ir_node is None or ir_node.kind != node.kind:
        return node
    inputs = node.inputs
    if len(ir_node.inputs) == len(inputs):
        inputs = tuple(map(_complete_input, inputs, ir_node.inputs))
    outputs = node.outputs
    if len(ir_node.outputs) == len(outputs):
        outputs = tuple(map(_complete_output, outputs, ir_node.outputs))
    frames = node.frames or ir_node.frames
    attributes = node.attributes or ir_node.attributes
    return node._replace(inputs=inputs, outputs=outputs, frames=frames, attributes=attributes)


def _complete_input(value: Input, ir_value: Input) -> Input:
    is_unknown_constant = value.kind == CONSTANT and value.shape is None
    if is_unknown_constant and ir_value.kind in {CONSTANT, NOTHING}:
        return ir_value
    return value


def _complete_output(output: Output, ir_output: Output) -> Output:
    shape = output.shape if output.shape is not None else ir_output.shape
    return Output(output.dtype or ir_output.dtype, shape)


def _read_names(paths: Mapping[str, Path], problems: list[Problem]) -> list[str]:
    """Return the names of a graph's nodes.

    An unreadable graph is a problem, because the numbers of the graphs after it are shifted.
    """
    try:
        if "pb" in paths:
            return read_pb_names(paths["pb"])
        return _IR_NAME.findall(read_input_text(paths["ir"], errors="replace"))
    except (DumpError, OSError) as error:
        file = next(iter(paths.values())).name
        message = f"op numbers may be shifted: {error}"
        problems.append(Problem(f"graphs/{file}", message, weakens=True))
        return []


def _list_numbered_prefixes(names: Sequence[str]) -> list[str]:
    return [_NUMBER.sub("", name) for name in names if _NUMBER.search(name)]


def _renumber_names(names: Sequence[str], counters: Counter[str]) -> list[str]:
    """Return the names at run time: the n-th node of one scope and type gets ``-op{n}``.

    ``counters`` counts on through all graphs. On CPU and GPU, the graph files are written before
    MindSpore renumbers its nodes (graph_compiler.cc, ``ResetNodeId``) and the tensors after it.
    With the printed numbers, 2 to 14 % of the ops would be joined wrongly without any sign of it.
    """
    runtime_names = []
    for name in names:
        prefix = _NUMBER.sub("", name)
        if prefix == name:
            runtime_names.append(name)
            continue
        runtime_names.append(f"{prefix}-op{counters[prefix]}")
        counters[prefix] += 1
    return runtime_names


#: One tensor, None where nothing is dumped, or a tuple of such values.
_Value = Slot | None | list["_Value"]


def _unfold_graph(graph: Graph, names: Sequence[str]) -> tuple[list[GraphOp], frozenset[int]]:
    """Return the executed ops, and which of them the last node returns.

    MakeTuple is spread over the slots of its consumer; TupleGetItem, Depend and Load are skipped.
    """
    values: dict[str, _Value] = {}
    ops: list[GraphOp] = []
    for node, name in zip(graph.nodes, names, strict=True):
        arguments = [_resolve_input(argument, values) for argument in node.inputs]
        if node.kind in _TUPLES:
            values[node.key] = arguments
        elif node.kind in _ITEMS:
            values[node.key] = _get_tuple_item(arguments)
        elif node.kind in _PASSES_FIRST:
            values[node.key] = arguments[0] if arguments else None
        elif node.kind in _SILENT:
            values[node.key] = None
        else:
            values[node.key] = _make_output_value(len(ops), len(node.outputs))
            slots = _flatten_values(arguments)
            ops.append(
                GraphOp(
                    node.kind, node.name, name, slots, node.outputs, node.frames, node.attributes
                )
            )
    results = _flatten_values([values[graph.nodes[-1].key]]) if graph.nodes else ()
    result_ops = frozenset(slot.op for slot in results if slot is not None and slot.is_op_output)
    return ops, result_ops


def _make_output_value(op: int, n_outputs: int) -> _Value:
    if n_outputs > 1:
        return [Slot(op, output) for output in range(n_outputs)]
    return Slot(op)


def _resolve_input(argument: Input, values: Mapping[str, _Value]) -> _Value:
    if argument.kind == NODE:
        return values.get(argument.name)
    if argument.kind == PARAMETER:
        return Slot(parameter=argument.name)
    return Slot(constant=argument) if argument.kind == CONSTANT else None


def _get_tuple_item(arguments: Sequence[_Value]) -> _Value:
    """Return the element of a tuple for the arguments (tuple, index)."""
    if len(arguments) < 2:
        return None
    container, index_slot = arguments[:2]
    if not isinstance(index_slot, Slot) or index_slot.constant is None:
        return None
    index = int((index_slot.constant.values or (0,))[0])
    if isinstance(container, list):
        is_in_range = -len(container) <= index < len(container)
        return container[index] if is_in_range else None
    if isinstance(container, Slot) and container.is_op_output:
        return container._replace(output=index)
    return container


def _flatten_values(arguments: list[_Value]) -> tuple[Slot | None, ...]:
    """Return the slots of an op.

    Works without recursion, because tuples may be nested to any depth.
    """
    flat: list[Slot | None] = []
    pending: list[_Value] = arguments[::-1]
    while pending and len(flat) < _MAX_SLOTS:
        value = pending.pop()
        if isinstance(value, list):
            pending += value[::-1]
        else:
            flat.append(value)
    return tuple(flat)
