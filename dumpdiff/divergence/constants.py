"""Which of the values that nothing computed are constants of the model, such as the angles of a rotary embedding.

A constant follows from how the model is built, a weight from what was loaded: whoever finds that one differs looks
elsewhere than for the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Flow, find_gradients
from ..graph.missing_edges import is_graph_input
from ..model.dtypes import is_floating
from ..model.trace import FORWARD
from .locations import Location, SideLocation

#: A matrix that a product reads is a weight even where it is frozen; constants are multiplied or added by element.
_BY_ELEMENT = frozenset({"mul", "add", "sub", "div"})


def is_constant(at: Location, kinds: tuple[Sequence[str], Sequence[str]]) -> bool:
    """Whether a floating value that nothing computed is none of the model's parameters.

    A value that either side calls a parameter is one. Else it is a constant if a graph says so, if a record that names
    its parameters does not name it, or if nothing goes back to it where something goes back to what it is multiplied
    with or added to. ``kinds`` are the canonical kinds of each side's ops.
    """
    sides = (at.target, at.reference)
    if any(side.parameter for side in sides):
        return False
    if any(is_immediate(side) or _names_parameters(side.flow) for side in sides):
        return True
    return any(_untrained(side.flow, side.value, of) for side, of in zip(sides, kinds, strict=True))


def is_immediate(side: SideLocation) -> bool:
    """The record has it as a constant of the graph."""
    return bool(side.flow.tensors["constant"].iat[int(side.flow.list_column("tensor")[side.value])])


def _names_parameters(flow: Flow) -> bool:
    """Most of the floating values that nothing computed have a name: not just those that were told by their values."""
    names, dtypes = flow.list_column("parameter"), flow.list_column("dtype")
    given = [
        name
        for value, name in enumerate(names)
        if is_floating(str(dtypes[value])) and is_graph_input(flow, value)
    ]
    return 2 * sum(map(bool, given)) > len(given)


def _untrained(flow: Flow, value: int, kinds: Sequence[str]) -> bool:
    readers = [
        op
        for op in flow.consumers[value]
        if flow.phases[op] == FORWARD
        and flow.trace.ops["level"].iat[op] == "op"
        and flow.writes[op]
    ]
    if not readers or any(kinds[op] not in _BY_ELEMENT for op in readers):
        return False
    back = {(output, given) for output, given, _ in find_gradients(flow, kinds).by_edge}
    ways = {
        (output, given) for op in readers for output in flow.writes[op] for given in flow.reads[op]
    } & back
    return bool(ways) and all(given != value for _, given in ways)
