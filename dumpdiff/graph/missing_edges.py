"""Missing edges: values that ops read and no recorded op produced, and what they come from.

Recorders leave out views, splits, casts, negations and more. A missing edge is bridged by evidence,
strongest first: functions whose result shows in the statistics, then the module tree, then the
order of execution.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ..model.dtypes import get_unit_roundoff, is_discrete
from ..model.trace import FORWARD
from .dataflow import Flow
from .joins import find_joined_parts, find_unread_parts

#: Ops before the first consumer that are searched: a decoder layer or two.
_WINDOW = 48
#: Relative difference of the norms of the same numbers, summed in another order.
_SUMMATION_ERROR = 2e-6
#: Numbers that are stacked; a single one would be the value itself.
_MIN_STACK_SIZE = 2
#: Share of the run. A value that is read over a longer stretch is a buffer, not a missing edge.
_MAX_SPAN = 0.25
#: Roundoffs of the narrower type by which the statistics of a cast may differ.
_CAST_ROUNDOFFS = 2
#: A chunk has at least this many elements; fewer share an extreme by chance ...
_MIN_CHUNK_SIZE = 8
#: ... and is at least this fraction of the whole.
_MAX_CHUNKS = 64


@dataclass(frozen=True)
class Bridge:
    """What a value without a recorded producer comes from."""

    parents: tuple[int, ...]  #: classes
    #: joined, stack, rearranged, cast, part (of another tensor), module call, order
    evidence: str


def has_missing_producer(flow: Flow, value: int) -> bool:
    """Return whether an op must have produced the value, but none was recorded.

    Parameters, masks, shared buffers and what is read before the first op have no producer to miss.
    """
    consumers = flow.consumers[value]
    if flow.producers[value] >= 0 or not consumers:
        return False
    if value in flow.partitions:
        return True
    is_named = bool(flow.list_column("parameter")[value])
    is_mask = is_discrete(str(flow.list_column("dtype")[value]))
    is_informative = bool(flow.list_column("evidence")[value])
    if is_named or is_mask or not is_informative:
        return False
    if _is_parameter_like(flow, value):
        return bool(find_unread_parts(flow, value))  # an assignment reads what it stores last
    first = consumers[0]
    first_phase = flow.phases[first]
    last = max(op for op in consumers if flow.phases[op] == first_phase)
    span = (last - first) / max(1, len(flow.phases))
    preceding_ops = range(max(0, first - _WINDOW), first)
    is_preceded = any(flow.writes[op] for op in preceding_ops)
    return is_preceded and span < _MAX_SPAN


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
    if not has_missing_producer(flow, value):
        return None
    if value in flow.partitions:
        return Bridge((flow.partitions[value],), "part")
    consumer = flow.consumers[value][0]
    scalars = _find_stacked_scalars(flow, consumer, value)
    if scalars:
        return Bridge(scalars, "stack")
    joined_parts = find_joined_parts(flow, value)
    if joined_parts:
        return Bridge(joined_parts, "joined")
    return _find_bridge_to_one(flow, consumer, value)


def _find_bridge_to_one(flow: Flow, consumer: int, value: int) -> Bridge | None:
    """Return the bridge to a single recent value, or to the inputs of the module call."""
    recent_values = _find_recent_values(flow, consumer, value)
    tests = (("rearranged", _is_rearrangement), ("cast", _is_cast), ("part", _is_chunk))
    for evidence, fits in tests:
        for recent_value in recent_values:
            if fits(flow, value, recent_value):
                return Bridge((recent_value,), evidence)
    call_inputs = _find_call_inputs(flow, consumer, value)
    if call_inputs:
        return Bridge(call_inputs, "module call")
    return Bridge(recent_values[:1], "order") if recent_values else None


def find_unrecorded_results(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the values that a forward result which no recorded op reads most likely flows to.

    The record of its gradient proves that the loss depends on it, so a recorder left out the op
    that reads it. These are the next values in the run with a missing producer, within the window:
    one op reads all of them. A single number, such as a loss of its own, flows to numbers only.
    () if the value is read, or nothing follows from it.
    """
    producer = int(flow.producers[value])
    if producer < 0 or flow.consumers[value] or flow.phases[producer] != FORWARD:
        return ()
    if value not in flow.recorded_gradients:
        return ()
    for op in range(producer + 1, min(producer + _WINDOW, len(flow.reads))):
        if flow.phases[op] != FORWARD:
            return ()
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
    is_stack = np.allclose(recorded, expected, rtol=_SUMMATION_ERROR, atol=0.0)
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


def _find_recent_values(flow: Flow, consumer: int, value: int) -> tuple[int, ...]:
    """Return the computed values that ops of the same phase wrote or read shortly before.

    The latest comes first. A single number, such as a loss, is not what a tensor was computed from.
    """
    min_size = min(2, int(flow.sizes[value]))
    recent_values: dict[int, None] = {}
    for op in range(consumer - 1, max(-1, consumer - _WINDOW), -1):
        if flow.phases[op] != flow.phases[consumer]:
            continue
        for candidate in (*flow.writes[op], *flow.reads[op]):
            is_computed = flow.producers[candidate] >= 0 or is_gradient(flow, candidate)
            if is_computed and candidate != value and flow.sizes[candidate] >= min_size:
                recent_values[candidate] = None
    return tuple(recent_values)


def _is_rearrangement(flow: Flow, value: int, source: int) -> bool:
    """Return whether size and norm are equal: other order or signs, as in rotary embeddings."""
    norm, source_norm = flow.norms[value], flow.norms[source]
    if flow.sizes[value] != flow.sizes[source]:
        return False
    if not np.isfinite(norm) or not np.isfinite(source_norm):
        return False
    return bool(norm > 0 and abs(norm - source_norm) <= _SUMMATION_ERROR * source_norm)


def _is_cast(flow: Flow, value: int, source: int) -> bool:
    """Return whether the types differ and the statistics agree to the roundoff of the narrower."""
    dtype = str(flow.list_column("dtype")[value])
    source_dtype = str(flow.list_column("dtype")[source])
    slack = _CAST_ROUNDOFFS * max(get_unit_roundoff(dtype), get_unit_roundoff(source_dtype))
    if dtype == source_dtype or flow.sizes[value] != flow.sizes[source] or slack == 0:
        return False
    for name in ("max", "min", "norm"):
        number, source_number = flow.list_column(name)[value], flow.list_column(name)[source]
        if not np.isfinite(number) or not np.isfinite(source_number):
            continue
        if abs(number - source_number) > slack * max(abs(number), abs(source_number)):
            return False
    return True


def _is_chunk(flow: Flow, value: int, source: int) -> bool:
    """Return whether the value may be a chunk of the source.

    A chunk is a whole fraction of the elements with a smaller norm and extremes within those of the
    source, at least one of them equal.
    """
    size, source_size = flow.sizes[value], flow.sizes[source]
    if size < _MIN_CHUNK_SIZE:
        return False
    n_chunks, remainder = divmod(source_size, size)
    if remainder or not 1 < n_chunks <= _MAX_CHUNKS:
        return False
    highs, lows = flow.list_column("max"), flow.list_column("min")
    high, source_high = highs[value], highs[source]
    low, source_low = lows[value], lows[source]
    is_within = high <= source_high and low >= source_low
    shares_extreme = high == source_high or low == source_low
    is_smaller = flow.norms[value] < flow.norms[source]
    return bool(is_within and shares_extreme and is_smaller)


def _find_call_inputs(flow: Flow, consumer: int, value: int) -> tuple[int, ...]:
    """Return the inputs of the module call around the consumer, none if the value is one."""
    call = flow.parents[consumer]
    if call < 0 or value in flow.reads[call]:
        return ()
    return flow.reads[call]


def _is_parameter_like(flow: Flow, value: int) -> bool:
    """Return whether an op reads a matrix or vector, but not as its first input.

    This is a weight in API records, which do not name parameters.
    """
    shape = flow.shapes[value]
    if shape is None or len(shape) > 2:
        return False
    rows = flow.get_tensor_ids(flow.consumers[value][0])
    slots = [flow.slots[row] for row in rows[flow.tensor_class[rows] == value].tolist()]
    return "input.0" not in slots
