"""Constants of the model, such as the angles of a rotary embedding, among the values it is given.

A constant follows from how the model is built, a weight from what was loaded. So the fault is in
another place if a constant differs than if a weight differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Flow, find_gradients
from ..graph.missing_edges import is_graph_input
from ..model.dtypes import is_floating
from ..model.trace import FORWARD
from .locations import Location, SideLocation

#: Kinds that constants are used with, element by element. A matrix that a product reads is a weight
#: even where it is frozen.
_ELEMENTWISE_KINDS = frozenset({"mul", "add", "sub", "div"})


def is_constant(location: Location, kinds: tuple[Sequence[str], Sequence[str]]) -> bool:
    """Return whether a floating value that nothing computed is none of the model's parameters.

    A value that either side names as a parameter is one. Else it is a constant if a graph says so,
    if a record that names its parameters does not name it, or if no gradient flows back to it where
    one flows back to the other factor or term. ``kinds`` are the canonical kinds of each side's
    ops.
    """
    sides = (location.target, location.reference)
    if any(side.parameter for side in sides):
        return False
    if any(is_immediate(side) or _names_parameters(side.flow) for side in sides):
        return True
    return any(
        _is_untrained(side.flow, side.value, side_kinds)
        for side, side_kinds in zip(sides, kinds, strict=True)
    )


def is_immediate(side: SideLocation) -> bool:
    """Return whether the record has the value as a constant of the graph."""
    tensor = int(side.flow.list_column("tensor")[side.value])
    return bool(side.flow.tensors["constant"].iat[tensor])


def _names_parameters(flow: Flow) -> bool:
    """Return whether most floating graph inputs have a name.

    If only some have one, they were identified by their values.
    """
    dtypes = flow.list_column("dtype")
    n_inputs = n_named = 0
    for value, name in enumerate(flow.list_column("parameter")):
        if is_floating(str(dtypes[value])) and is_graph_input(flow, value):
            n_inputs += 1
            n_named += bool(name)
    return 2 * n_named > n_inputs


def _is_untrained(flow: Flow, value: int, kinds: Sequence[str]) -> bool:
    """Return whether gradients flow back through the consumers of a value, but not to it."""
    consumers = _list_forward_consumers(flow, value)
    consumer_kinds = {kinds[op] for op in consumers}
    if not consumers or not consumer_kinds <= _ELEMENTWISE_KINDS:
        return False
    trained_inputs = _find_trained_inputs(flow, kinds, consumers)
    return bool(trained_inputs) and value not in trained_inputs


def _find_trained_inputs(flow: Flow, kinds: Sequence[str], ops: Sequence[int]) -> set[int]:
    """Return the inputs of the ops to which gradients flow back from their outputs."""
    gradient_edges = {(output, read) for output, read, _ in find_gradients(flow, kinds).by_edge}
    trained_inputs = set()
    for op in ops:
        edges = {(output, read) for output in flow.writes[op] for read in flow.reads[op]}
        trained_inputs |= {read for _, read in edges & gradient_edges}
    return trained_inputs


def _list_forward_consumers(flow: Flow, value: int) -> list[int]:
    """Return the forward ops that read a value and have an output, without calls of modules."""
    levels = flow.trace.ops["level"]
    consumers = []
    for op in flow.consumers[value]:
        is_forward_op = flow.phases[op] == FORWARD and levels.iat[op] == "op"
        if is_forward_op and flow.writes[op]:
            consumers.append(op)
    return consumers
