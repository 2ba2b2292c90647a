"""Operands: the values around a finding that a cause may be computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray
from ..model.dtypes import is_floating
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import BACKWARD, FORWARD
from .comparison_index import (
    ComparisonIndex,
    find_inputs,
    find_whole_tensor,
    list_op_inputs,
    name_producer,
)
from .fault_case import Operand
from .finding_arrays import MAX_ELEMENTS
from .scaling_search import find_scalings
from .surroundings import find_consumers

#: Values elsewhere in the model that are tried in place of an input.
_MAX_OTHER_VALUES = 24
#: Values of one side that are tried as labels, or as weights of classes.
MAX_GIVEN_VALUES = 12
#: Ops upstream of a value that are searched for its operands.
MAX_DEPTH = 6
#: Operands at which the search upstream stops.
MAX_OPERANDS = 40
#: Kinds whose parameter may be another one of its shape: embeddings, and weights of norms.
PARAMETER_KINDS = ("gather_rows", "mul")


def collect_operands(
    index: ComparisonIndex, side: int, value: int, ops: Sequence[int]
) -> tuple[Operand, ...]:
    """Return the operands of a value, each in the layout in which the op that leads here read it.

    Values upstream come first, breadth first, then the inputs and outputs of ``ops`` and the inputs
    of the module calls around them.
    """
    flow = index.flows[side]
    operands: dict[int, Operand | None] = {value: None}
    front = [value]
    for _ in range(MAX_DEPTH):
        next_front = []
        for front_value in front:
            for input_value, tensor in find_inputs(flow, front_value):
                if input_value not in operands:
                    operands[input_value] = _make_operand(index, side, input_value, tensor)
                    next_front.append(input_value)
        front = next_front
        if len(operands) >= MAX_OPERANDS:
            break
    for op in ops:
        other_values = (*list_module_inputs(flow, op), *flow.writes[op])
        others = [(other_value, -1) for other_value in other_values]
        for input_value, tensor in (*list_op_inputs(flow, op), *others):
            if input_value not in operands:
                operands[input_value] = _make_operand(index, side, input_value, tensor)
    return tuple(operand for operand in operands.values() if operand is not None)


def list_module_inputs(flow: Flow, op: int) -> Sequence[int]:
    """Return the input values of the nearest module call around an op."""
    parent = int(flow.trace.ops["parent"].iat[op])
    return flow.reads[parent] if parent >= 0 else ()


def find_other_values(
    index: ComparisonIndex, side: int, value: int, shape: tuple[int, ...]
) -> Sequence[Operand]:
    """Return forward values of this shape that both sides have, as :func:`list_other_values`.

    Those without whole tensors are left out: of a narrowed dump, the others count.
    """
    values = list_other_values(index, side, value, int(np.prod(shape)))
    return _take_recorded(index, side, values)


def find_wholes(index: ComparisonIndex, side: int, value: int) -> Sequence[Operand]:
    """Return forward values that both sides have and that are longer than a value along one axis.

    They were there before it, the nearest first: it may be a part of one.
    """
    flow = index.flows[side]
    shape = flow.shapes[value] or ()
    wholes = [
        other
        for other in np.flatnonzero(flow.sizes > flow.sizes[value]).tolist()
        if _is_longer(flow.shapes[other] or (), shape)
    ]
    values = _select_earlier_values(index, side, value, wholes)
    return _take_recorded(index, side, values)


def _take_recorded(index: ComparisonIndex, side: int, values: Sequence[int]) -> list[Operand]:
    """Return the first values of which whole tensors were recorded, as operands."""
    operands = (_make_operand(index, side, value) for value in values)
    return list(islice((item for item in operands if item is not None), _MAX_OTHER_VALUES))


def _is_longer(shape: tuple[int, ...], part_shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is longer than another one along one axis and alike in the others."""
    if len(shape) != len(part_shape):
        return False
    return sum(length != part for length, part in zip(shape, part_shape, strict=True)) == 1


def list_other_values(index: ComparisonIndex, side: int, value: int, size: int) -> list[int]:
    """Return agreeing forward values of a size that are no parameters, the nearest first."""
    values = np.flatnonzero(index.flows[side].sizes == size).tolist()
    return _select_earlier_values(index, side, value, values)


def _select_earlier_values(
    index: ComparisonIndex, side: int, value: int, others: Sequence[int]
) -> list[int]:
    """Return those of some values that are agreeing forward values, the nearest first.

    They were there before ``value``; before a gradient, the nearest are those around the value that
    it is the gradient of. Inputs of the run, such as the batch, come last.
    """
    flow = index.flows[side]
    phases, parameters = flow.list_column("phase"), flow.list_column("parameter")
    dtypes = flow.list_column("dtype")
    last_op = place = _find_place(flow, value)
    if phases[value] == BACKWARD:
        forward_values = [key for key, item in flow.recorded_gradients.items() if item == value]
        place = max((int(flow.producers[key]) for key in forward_values), default=place)
    candidates = []
    for other in others:
        producer = int(flow.producers[other])
        is_earlier = phases[other] == FORWARD and producer < last_op
        is_shared = other in index.agreed_classes[side] and not parameters[other]
        if is_earlier and is_shared and is_floating(str(dtypes[other])):
            candidates.append((producer < 0, abs(place - producer), other))
    return [other for *_, other in sorted(candidates)]


def _find_place(flow: Flow, value: int) -> int:
    """Return the op that wrote a value, or the first that read it; -1 if none did."""
    producer = int(flow.producers[value])
    return producer if producer >= 0 else min(flow.consumers[value], default=-1)


def find_other_gradients(index: ComparisonIndex, side: int, value: int) -> Sequence[Operand]:
    """Return gradients of a value's size that both sides have, and had before it, nearest first."""
    flow = index.flows[side]
    phases = flow.list_column("phase")
    last_op = _find_place(flow, value)
    gradients = []
    for other in np.flatnonzero(flow.sizes == flow.sizes[value]).tolist():
        producer = int(flow.producers[other])
        is_earlier = phases[other] == BACKWARD and 0 <= producer < last_op
        if is_earlier and other in index.agreed_classes[side]:
            gradients.append((last_op - producer, other))
    return _take_recorded(index, side, [other for _, other in sorted(gradients)])


def list_consumers(
    index: ComparisonIndex, side: int, value: int
) -> Sequence[tuple[str, Sequence[Operand]]]:
    """Return (kind, other operands) of the ops that read a value.

    They tell what the value is for, also where only their statistics are recorded: then their
    elements are NaN.
    """
    flow, kinds = index.flows[side], index.kinds[side]
    consumers = []
    for op in sorted(find_consumers(index, side, {value})):
        operands = []
        for other_value, tensor in list_op_inputs(flow, op):
            if other_value == value:
                continue
            operand = _make_operand(index, side, other_value, tensor)
            is_small = flow.sizes[other_value] <= MAX_ELEMENTS
            if operand is None and is_small and is_floating(str(flow.tensors["dtype"].iat[tensor])):
                operand = _describe_operand(index, side, other_value, tensor)
            if operand is not None:
                operands.append(operand)
        consumers.append((kinds[op], operands))
    return consumers


def list_given_values(index: ComparisonIndex, size: int) -> Sequence[Operand]:
    """Return the forward values of both sides that have a size, and are whole numbers or constants.

    Labels, also shifted ones, and weights of classes are such values.
    """
    operands: list[Operand] = []
    for side in (0, 1):
        for value in iterate_given_values(index, side, size):
            operand = _make_operand(index, side, value)
            if operand is not None:
                operands.append(operand)
            if len(operands) >= MAX_GIVEN_VALUES * (side + 1):
                break
    return operands


def iterate_given_values(index: ComparisonIndex, side: int, size: int) -> Iterator[int]:
    """Yield the forward values of one side and size that are whole numbers or constants."""
    flow = index.flows[side]
    phases, dtypes = flow.list_column("phase"), flow.list_column("dtype")
    parameters = flow.list_column("parameter")
    for value in np.flatnonzero(flow.sizes == size).tolist():
        is_whole = str(dtypes[value]).startswith(("int", "uint"))
        is_constant = flow.producers[value] < 0 and not parameters[value]
        if phases[value] == FORWARD and (is_whole or is_constant):
            yield value


def list_parameters(index: ComparisonIndex, side: int, size: int) -> Sequence[Operand]:
    """Return the forward parameters of one side that have a size."""
    values = list_parameter_values(index.flows[side], size)
    operands = [_make_operand(index, side, value) for value in values]
    return [operand for operand in operands if operand is not None]


def list_parameter_values(flow: Flow, size: int) -> list[int]:
    """Return the classes of the forward parameters that have a size."""
    parameters, phases = flow.list_column("parameter"), flow.list_column("phase")
    return [
        value
        for value in np.flatnonzero(flow.sizes == size).tolist()
        if parameters[value] and phases[value] == FORWARD
    ]


def load_value(index: ComparisonIndex, side: int, value: int) -> AnyArray | None:
    """Return a value in the layout in which it was computed; None without a whole tensor."""
    operand = _make_operand(index, side, value) if value >= 0 else None
    return None if operand is None else operand.array


def _make_operand(
    index: ComparisonIndex, side: int, value: int, tensor: int = -1
) -> Operand | None:
    """Return the operand; None if it has no whole tensor, or a too large one."""
    flow = index.flows[side]
    if tensor < 0 or not flow.tensors["file"].iat[tensor]:
        tensor = find_whole_tensor(flow, value)
    if tensor < 0 or flow.sizes[value] > MAX_ELEMENTS:
        return None
    return _describe_operand(index, side, value, tensor)


def _describe_operand(index: ComparisonIndex, side: int, value: int, tensor: int) -> Operand:
    """Return the operand, as recorded in one tensor."""
    flow = index.flows[side]
    parameter = _name_parameter(index, side, value)
    return Operand(
        name=parameter or name_producer(flow, int(flow.producers[value])),
        kind=index.get_producer_kind(side, value),
        parameter=parameter,
        agrees=value in index.agreed_classes[side],
        shape=tuple(flow.tensors["shape"].iat[tensor] or ()),
        load=_make_loader(flow, tensor),
        load_scalings=partial(find_scalings, index, side, value),
        value=value,
    )


def _name_parameter(index: ComparisonIndex, side: int, value: int) -> str:
    """Return the name of a parameter, '' if the value is none.

    A weight that was loaded into the place of another one has the names of both. Its own is that
    of its partner, which lacks the other.
    """
    flow = index.flows[side]
    name = str(flow.list_column("parameter")[value])
    partner = index.partners[side].get(value)
    if not name or partner is None:
        return name
    partner_name = str(index.flows[1 - side].list_column("parameter")[partner])
    if partner_name == name:
        return name
    names = flow.tensors["parameter"].to_numpy()[flow.tensor_class == value]
    return partner_name if partner_name in names else name


def _make_loader(flow: Flow, tensor: int) -> Callable[[], AnyArray]:
    """Return a function that reads a tensor; an unreadable one gives NaN."""

    def load() -> AnyArray:
        array = load_readable_tensor(flow.trace, tensor)
        if array is not None:
            return array
        shape = tuple(flow.tensors["shape"].iat[tensor] or ())
        return np.full(shape, np.nan)

    return load
