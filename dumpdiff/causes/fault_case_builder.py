"""Build fault cases: load the arrays of both sides around the place where they diverge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from ..graph import Flow
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.trace import FORWARD, OPTIMIZER
from ..operators import Call, read_execution
from ..operators.call import make_call
from .comparison_index import ComparisonIndex, ValuePair, depends_on
from .exchanged_weights import count_exchanged_calls, find_exchanged_weights
from .fault_case import FaultCase, Operand
from .finding_arrays import MAX_ELEMENTS, load_arrays
from .gradient_paths import GradientPaths, find_gradient_paths
from .moved_steps import find_later_op, find_moved_step
from .operands import (
    collect_operands,
    find_other_gradients,
    find_other_values,
    find_wholes,
    list_consumers,
    list_given_values,
    list_parameters,
    load_value,
)
from .region_builder import LONG_REGION_STEPS, build_region
from .routing import find_routings
from .scaling_search import find_scalings
from .surroundings import collect_consumer_kinds, is_of_loss, is_routed, list_finding_ops
from .update_steps import has_equal_step

_SIDE_NAMES = ("target", "reference")
#: Kind of op -> the number that changes nothing.
_NEUTRAL_NUMBERS = {"add": 0.0, "mul": 1.0}
#: Relative L2 that weights of experts differ by from the same scores: softmax, sum and quotient in
#: float32. The finding may be about the numbers of the experts, which have no tolerance.
_ROUTING_TOLERANCE = 2e-6


def build_fault_cases(
    index: ComparisonIndex, finding: Finding, value_pair: ValuePair
) -> Iterator[FaultCase]:
    """Yield the finding with the target assumed to be faulty, then with the reference.

    Yields nothing without whole tensors.
    """
    arrays = load_arrays(index, value_pair)
    if arrays is None:
        return
    values = value_pair.classes
    ops = [list_finding_ops(index, side, finding) for side in (0, 1)]
    operands = [collect_operands(index, side, values[side], ops[side]) for side in (0, 1)]
    consumer_kinds = [collect_consumer_kinds(index, side, values[side]) for side in (0, 1)]
    numbers = [tuple(_find_immediate_numbers(index.flows[side], ops[side])) for side in (0, 1)]
    scalings = [find_scalings(index, side, values[side]) for side in (0, 1)]
    is_near_loss = is_of_loss(index, finding, values)
    calls = [_read_call(index, side, values[side]) for side in (0, 1)]
    load_regions = [
        cache(partial(build_region, index, side, values[side], arrays[side], finding.tolerance))
        for side in (0, 1)
    ]
    load_long_regions = [
        partial(
            build_region,
            index,
            side,
            values[side],
            arrays[side],
            finding.tolerance,
            LONG_REGION_STEPS,
        )
        for side in (0, 1)
    ]
    load_paths = [
        cache(partial(_list_gradient_paths, index, side, values, finding.tolerance))
        for side in (0, 1)
    ]
    is_step_equal = has_equal_step(index, values) if finding.phase == OPTIMIZER else None
    for faulty, faithful in ((0, 1), (1, 0)):
        flow = index.flows[faithful]
        parameters: Sequence[Operand] = ()
        if finding.is_given:
            parameters = list_parameters(index, faithful, arrays[0].size)
        yield FaultCase(
            finding=finding,
            faulty_side=_SIDE_NAMES[faulty],
            faulty=arrays[faulty],
            faithful=arrays[faithful],
            operands=operands[faithful],
            faulty_operands=operands[faulty],
            numbers=numbers[faithful],
            faulty_numbers=numbers[faulty],
            kinds=tuple(index.kinds[faithful][op] for op in ops[faithful]),
            faulty_kinds=tuple(index.kinds[faulty][op] for op in ops[faulty]),
            consumer_kinds=consumer_kinds[faithful] | consumer_kinds[faulty],
            tolerance=finding.tolerance,
            dtype=str(flow.list_column("dtype")[values[faithful]]),
            call=calls[faithful],
            faulty_call=calls[faulty],
            is_near_loss=is_near_loss,
            has_equal_step=is_step_equal,
            find_other_values=cache(partial(find_other_values, index, faithful, values[faithful])),
            find_wholes=partial(find_wholes, index, faithful),
            load_value=partial(load_value, index, faithful),
            find_other_gradients=partial(find_other_gradients, index, faithful, values[faithful]),
            find_parameters=partial(list_parameters, index, faithful),
            find_given_values=partial(list_given_values, index),
            depends_on=partial(depends_on, flow),
            combines_neutral=partial(_combines_neutral, index, faulty),
            find_moved_step=partial(find_moved_step, index, faithful),
            find_later_op=partial(find_later_op, index, faithful, values),
            find_exchanged_weights=partial(find_exchanged_weights, index, faithful),
            count_exchanged_calls=partial(count_exchanged_calls, index, faithful),
            load_consumers=partial(list_consumers, index, faithful, values[faithful]),
            load_region=load_regions[faithful],
            load_long_region=load_long_regions[faithful],
            load_faulty_region=load_regions[faulty],
            load_gradient_paths=partial(_join_lists, load_paths[faithful], load_paths[faulty]),
            parameters=tuple(parameters),
            faulty_scalings=scalings[faulty],
            faithful_scalings=scalings[faithful],
        )


def _list_gradient_paths(
    index: ComparisonIndex, side: int, gradients: tuple[int, int], tolerance: float
) -> list[GradientPaths]:
    return list(find_gradient_paths(index, side, gradients, tolerance))


def _join_lists(*loaders: Callable[[], list[GradientPaths]]) -> list[GradientPaths]:
    return [paths for load in loaders for paths in load()]


def build_routing_cases(
    index: ComparisonIndex, cases: Sequence[FaultCase], value_pair: ValuePair
) -> list[FaultCase]:
    """Return the cases with the weights of experts as their values.

    Empty unless experts are chosen next to the values, and are weighted differently.
    """
    if not cases or not is_routed(index, cases[0].finding, value_pair.classes):
        return []
    routings = find_routings(index, value_pair.classes)
    if routings is None:
        return []
    routing_cases = []
    for case in cases:
        faulty = _SIDE_NAMES.index(case.faulty_side)
        routing, faulty_routing = routings[1 - faulty], routings[faulty]
        routing_case = replace(
            case,
            faulty=faulty_routing.weights,
            faithful=routing.weights,
            routing=routing,
            faulty_routing=faulty_routing,
            tolerance=max(case.tolerance, _ROUTING_TOLERANCE),
            call=None,
        )
        if routing_case.error > routing_case.tolerance:
            routing_cases.append(routing_case)
    return routing_cases


def _read_call(index: ComparisonIndex, side: int, value: int) -> Call | None:
    """Return the op that produced a value, with its inputs.

    None if an input is missing, or if the value is not the op's first output.
    """
    flow = index.flows[side]
    producer = int(flow.producers[value])
    if producer < 0:
        return None
    rows = flow.get_tensor_ids(producer).tolist()
    outputs = [row for row in rows if flow.tensors["slot_kind"].iat[row] == "output"]
    if not outputs or flow.tensor_class[outputs[0]] != value:
        return None
    if max(flow.tensors["size"].iloc[rows]) > MAX_ELEMENTS:
        return None
    execution = read_execution(flow.trace, rows)
    if execution is None:
        return None
    kind = index.kinds[side][producer]
    return make_call(kind, execution.inputs, execution.keywords, execution.output.shape)


def _combines_neutral(
    index: ComparisonIndex, side: int, other_value: int, size: int, kind: str
) -> bool:
    """Return whether a side adds zeros to its partner of a value of the other side, or so on.

    The result is the value itself, so it is no value of its own.
    """
    value = index.partners[1 - side].get(other_value, -1)
    neutral = _NEUTRAL_NUMBERS.get(kind)
    flow = index.flows[side]
    if value < 0 or neutral is None:
        return False
    tensors = flow.tensors
    sizes, largest, smallest = (tensors[name].to_numpy() for name in ("size", "max", "min"))
    for op in flow.consumers[value]:
        if index.kinds[side][op] != kind or flow.phases[op] != FORWARD:
            continue
        for row in flow.get_tensor_ids(op).tolist():
            if sizes[row] == size and largest[row] == smallest[row] == neutral:
                return True
    return False


def _find_immediate_numbers(flow: Flow, ops: Sequence[int]) -> Iterator[float]:
    """Yield the finite floating immediate numbers among the inputs of ops."""
    for op in ops:
        for row in flow.get_tensor_ids(op).tolist():
            if not _is_immediate_number(flow, row):
                continue
            value = float(flow.tensors["max"].iat[row])
            if np.isfinite(value):
                yield value


def _is_immediate_number(flow: Flow, row: int) -> bool:
    """Return whether a tensor is one floating number that was passed as an argument."""
    tensors = flow.tensors
    is_single = bool(tensors["constant"].iat[row]) and tensors["size"].iat[row] == 1
    return is_single and is_floating(str(tensors["dtype"].iat[row]))
