"""Missing edges: values that ops read and no recorded op produced, and what they come from.

Recorders leave out views, splits, casts, negations and more. A missing edge is bridged by evidence,
strongest first: functions whose result shows in the statistics, then the module tree, then the
order of execution.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

from ..model.arrays import Flags, Ints
from ..model.trace import BACKWARD, FORWARD
from .dataflow import Bridge, Flow
from .joins import find_joined_parts, find_unread_parts
from .passing_values import WINDOW
from .recent_values import SUMMATION_ERROR, RecentSource, find_recent_sources
from .slices import find_slices

#: Numbers that are stacked; a single one would be the value itself.
_MIN_STACK_SIZE = 2
#: Vectors of one length from which on they are steps of a path, not weights.
_MIN_STEPS = 4
#: Names that APIs give sums and products of two values, element by element, without underscores.
_ELEMENTWISE_NAMES = {"add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul",
                      "div", "truediv", "rtruediv", "itruediv", "multiply", "subtract", "divide",
                      "true_divide"}  # fmt: skip


def has_missing_producer(flow: Flow, value: int) -> bool:
    """Return whether an op must have produced the value, but none was recorded.

    Parameters, masks, shared buffers and what is read before the first op have no producer to miss.
    """
    if value not in flow.missing_producers:
        flow.missing_producers[value] = _lacks_producer(flow, value)
    return flow.missing_producers[value]


def _lacks_producer(flow: Flow, value: int) -> bool:
    if not flow.may_lack_producer[value]:
        return False
    if flow.has_known_sources[value]:
        return True
    if _is_parameter_like(flow, value):
        return bool(find_unread_parts(flow, value))  # an assignment reads what it stores last
    return bool(flow.is_passing[value])


def flag_missing_producers(flow: Flow, values: Ints) -> Flags:
    """Return (values,) what :func:`has_missing_producer` says of each."""
    may_lack = flow.may_lack_producer[values]
    flags: Flags = may_lack & (flow.has_known_sources[values] | flow.is_passing[values])
    # only what has the axes of a weight is looked at closely
    is_open = may_lack & flow.has_few_axes[values] & ~flow.has_known_sources[values]
    distinct_values, numbers = np.unique(values[is_open], return_inverse=True)
    answers = [has_missing_producer(flow, value) for value in distinct_values.tolist()]
    flags[is_open] = np.array(answers, dtype=bool)[numbers]
    return flags


def is_graph_input(flow: Flow, value: int) -> bool:
    """Return whether nothing computed the value: a parameter, the batch, a buffer.

    False for missing edges and for gradients that a backward record was given.
    """
    if flow.producers[value] >= 0:
        return False
    return not is_gradient(flow, value) and not has_missing_producer(flow, value)


def is_gradient(flow: Flow, value: int) -> bool:
    """Return whether the value belongs to the backward pass or the optimizer.

    If no recorded op produced it, a backward record was given it: it was computed all the same.
    """
    return bool(flow.list_column("phase")[value] != FORWARD)


def find_bridge(flow: Flow, value: int) -> Bridge | None:
    """Return what a value with a missing producer was most likely computed from.

    None if its producer is not missing or nothing fits.
    """
    if value not in flow.bridges:
        flow.bridges[value] = find_bridges(flow, [value]).get(value)
    return flow.bridges[value]


def find_bridges(flow: Flow, values: Iterable[int]) -> dict[int, Bridge]:
    """Return the bridges of the values that have one, see :func:`find_bridge`."""
    bridges: dict[int, Bridge] = {}
    all_values = np.fromiter(values, dtype=np.int64)
    all_values = all_values[flag_missing_producers(flow, all_values)]
    may_have_parts = flow.may_have_parts[all_values].tolist()
    other_values = []
    for value, is_tried in zip(all_values.tolist(), may_have_parts, strict=True):
        bridge = _find_parts(flow, value) if is_tried else None
        if bridge is None:
            other_values.append(value)
        else:
            bridges[value] = bridge
    by_statistics, by_order = find_recent_sources(flow, other_values)
    remaining_values = [value for value in other_values if value not in by_statistics]
    for value, whole in find_slices(flow, remaining_values).items():
        by_statistics[value] = RecentSource(whole, "part")
    remaining_values = [value for value in remaining_values if value not in by_statistics]
    call_inputs = _find_call_inputs(flow, np.array(remaining_values, dtype=np.int64))
    for value in other_values:
        source = by_statistics.get(value)
        if source is None:
            if value in call_inputs:
                bridges[value] = Bridge(call_inputs[value], "module call")
                continue
            source = by_order.get(value)
        if source is not None:
            bridges[value] = Bridge((source.value,), source.evidence)
    return bridges


def _find_parts(flow: Flow, value: int) -> Bridge | None:
    """Return the bridge to recorded values that are parts of a value, or that it is a part of."""
    if value in flow.known_sources:
        return flow.known_sources[value]
    scalars = _find_stacked_scalars(flow, flow.consumers[value][0], value)
    if scalars:
        return Bridge(scalars, "stack")
    joined_parts = find_joined_parts(flow, value)
    if joined_parts:
        return Bridge(joined_parts, "joined")
    return None


def find_unrecorded_results(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the values that a forward result which no recorded op reads most likely flows to.

    The record of its gradient proves that the loss depends on it, so a recorder left out the op
    that reads it. These are the next values in the run with a missing producer, within the window:
    one op reads all of them. A single number, such as a loss of its own, flows to numbers only.
    () if the value is read, or nothing follows from it.
    """
    if value in flow.wholes:
        return flow.wholes[value]
    for op in _iterate_ops_after_unread(flow, value):
        results = tuple(
            read
            for read in flow.reads[op]
            if flow.consumers[read][0] == op
            and has_missing_producer(flow, read)
            and (flow.sizes[value] > 1 or flow.sizes[read] == 1)
        )
        if results:
            return results
    return ()


def find_gradient_sums(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the gradients of which one that no recorded op reads most likely is a term.

    A user's own backward function is given the sum of the gradients of all uses, and its ops name
    no forward call whose uses would show the terms. It is the next such sum in the run, within the
    window. () for any other value.
    """
    producer = int(flow.producers[value])
    is_unread_gradient = producer >= 0 and not flow.consumers[value]
    if not is_unread_gradient or flow.list_column("phase")[value] != BACKWARD:
        return ()
    if flow.list_column("gradient_of")[value]:
        return ()
    for op in range(producer + 1, min(producer + WINDOW, len(flow.reads))):
        if flow.phases[op] != BACKWARD or flow.calls[op] >= 0 or flow.is_module[op]:
            continue
        sums = [
            read
            for read in flow.reads[op]
            if flow.producers[read] < 0
            and flow.consumers[read][0] == op
            and is_gradient(flow, read)
        ]
        if sums:
            return tuple(read for read in sums if flow.shapes[read] == flow.shapes[value])
    return ()


def find_possible_parts(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the values that may be parts of a forward result which no recorded op reads.

    As :func:`find_unrecorded_results`, but several ops may read them, as those of a recurrent cell
    read its gates. The size of a part divides that of the whole, and its extremes are within those
    of the whole. () for what is known to be joined to others.
    """
    if value in flow.wholes:
        return ()
    highs, lows = flow.list_column("max"), flow.list_column("min")
    parts: list[int] = []
    for op in _iterate_ops_after_unread(flow, value):
        for read in flow.reads[op]:
            size = int(flow.sizes[read])
            is_fraction = 1 < size < flow.sizes[value] and flow.sizes[value] % size == 0
            is_within = highs[read] <= highs[value] and lows[read] >= lows[value]
            is_first = flow.consumers[read][0] == op
            if is_first and is_fraction and is_within and has_missing_producer(flow, read):
                parts.append(read)
    return tuple(parts)


def _iterate_ops_after_unread(flow: Flow, value: int) -> Iterator[int]:
    """Yield the forward ops in the window after a forward result that no recorded op reads.

    No op if the record of its gradient does not prove that the loss depends on it.
    """
    producer = int(flow.producers[value])
    if producer < 0 or flow.consumers[value] or flow.phases[producer] != FORWARD:
        return
    if value not in flow.recorded_gradients:
        return
    for op in range(producer + 1, min(producer + WINDOW, len(flow.reads))):
        if flow.phases[op] != FORWARD:
            return
        yield op


def find_enclosing_inputs(flow: Flow, consumer: int, value: int) -> tuple[int, ...]:
    """Return the inputs of the innermost module call around the consumer that lacks the value."""
    for call in flow.iterate_enclosing_calls(consumer):
        if value not in flow.reads[call]:
            return flow.reads[call]
    return ()


def _find_stacked_scalars(flow: Flow, consumer: int, value: int) -> tuple[int, ...]:
    """Return the numbers that the elements of a value are: the last results of one kind of op.

    So are the norms of all gradients, from which clipping computes the norm of the whole model.
    () if extremes and norm are not those of the numbers.
    """
    n_elements = int(flow.sizes[value])
    if n_elements < _MIN_STACK_SIZE:
        return ()
    scalars = _find_last_numbers(flow, consumer, n_elements)
    if len(scalars) < n_elements:
        return ()
    numbers = np.array([flow.list_column("max")[scalar] for scalar in scalars], dtype=float)
    expected = (numbers.max(), numbers.min(), float(np.linalg.norm(numbers)))
    recorded = (flow.list_column("max")[value], flow.list_column("min")[value], flow.norms[value])
    is_stack = np.allclose(recorded, expected, rtol=SUMMATION_ERROR, atol=0.0)
    return tuple(scalars) if is_stack else ()


def _find_last_numbers(flow: Flow, consumer: int, count: int) -> list[int]:
    """Return the numbers written last before an op: at most ``count``, all by one kind of op."""
    latest_op, numbers = -1, []
    for ops, values in flow.written_numbers.values():
        n_before = bisect_left(ops, consumer)
        if n_before and ops[n_before - 1] > latest_op:
            latest_op = ops[n_before - 1]
            numbers = values[max(0, n_before - count) : n_before]
    return numbers


def _find_call_inputs(flow: Flow, values: Ints) -> dict[int, tuple[int, ...]]:
    """Return the inputs of the module call around the first consumer of each value.

    With them are the results inside the call, shortly before the consumer, that no op reads. Values
    that no such call encloses, or that are an input of it, are left out.
    """
    calls = flow.trace.ops["parent"].to_numpy()[flow.first_consumers[values]]
    values, calls = values[calls >= 0], calls[calls >= 0]
    first_reads = flow.first_reads[values]
    starts, stops = (
        np.searchsorted(flow.unread_inner_places, calls * len(flow.reads) + ops).tolist()
        for ops in (np.maximum(first_reads - WINDOW, 0), first_reads)
    )
    results = flow.unread_inner_results.values
    inputs_of: dict[int, tuple[int, ...]] = {}
    for value, call, start, stop in zip(
        values.tolist(), calls.tolist(), starts, stops, strict=True
    ):
        inputs = flow.reads[call]
        if inputs and value not in inputs:
            inputs_of[value] = *inputs, *results[start:stop].tolist()
    return inputs_of


def _is_parameter_like(flow: Flow, value: int) -> bool:
    """Return whether an op reads a matrix or vector, but not as its first input.

    This is a weight in API records, which do not name parameters. A matrix that is added to, or
    multiplied with, another one of its shape, element by element, is none: a weight lacks the axis
    of the batch. So a step of a sequence, or a gate that was cut from a projection, is no weight.
    Nor is a vector that is combined with a computed one, such as the next step of a path, if there
    are several of its length: the weights of a loss are one.
    """
    shape = flow.shapes[value]
    if shape is None or len(shape) > 2:
        return False
    consumer = flow.consumers[value][0]
    slot_values: dict[str, int] = {}
    for row in flow.get_tensor_ids(consumer).tolist():
        if flow.tensor_class[row] >= 0:
            slot_values[flow.slots[row]] = int(flow.tensor_class[row])
    first_value = slot_values.get("input.0", -1)
    if first_value == value:
        return False
    is_matrix = len(shape) == 2 and min(shape) > 1
    is_vector = len(shape) == 1 and flow.counts_of_lone_vectors[shape[0]] >= _MIN_STEPS
    return not (
        first_value >= 0
        and (is_matrix or (is_vector and flow.producers[first_value] >= 0))
        and flow.shapes[first_value] == shape
        and not flow.list_column("parameter")[first_value]
        and _combines_elements(flow.trace.ops["kind"].iat[consumer])
    )


def _combines_elements(kind: str) -> bool:
    """Return whether a recorder's name of an op is that of an element-wise sum or product."""
    return kind.rpartition(".")[2].strip("_") in _ELEMENTWISE_NAMES
