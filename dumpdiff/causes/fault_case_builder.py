"""Build fault cases: load the arrays of both sides around the place where they diverge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from ..alignment import FusedGroup
from ..comparison.fused_tensors import join_parts
from ..comparison.layouts import find_common_layout
from ..graph import Flow
from ..model.arrays import AnyArray, Floats
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from ..operators import Call, read_execution
from ..operators.call import make_call
from ..operators.recurrence import GATE_COUNTS
from .comparison_index import (
    ComparisonIndex,
    ValuePair,
    depends_on,
    find_inputs,
    find_whole_tensor,
    list_op_inputs,
)
from .fault_case import FaultCase, Operand, compute_residual
from .moved_steps import find_moved_step
from .region import build_region
from .routing import find_routings
from .scaling_search import find_scalings
from .update_steps import has_equal_step

#: Largest tensor that is recomputed: 64 MB as float64.
MAX_ELEMENTS = 1 << 23
#: Values elsewhere in the model that are tried in place of an input.
_MAX_OTHER_VALUES = 24
#: Values of one side that are tried as labels, or as weights of classes.
MAX_GIVEN_VALUES = 12
#: Ops upstream of a value that are searched for its operands.
MAX_DEPTH = 6
#: Operands at which the search upstream stops.
MAX_OPERANDS = 40
#: Steps downstream over which the kinds of consumers are collected ...
_CONSUMER_STEPS = 3
#: ... unless one step reaches more values than this.
_MAX_CONSUMED_VALUES = 64
#: Backward ops between the loss and a gradient that is called a gradient of the loss.
_MAX_SEED_OPS = 12
_SIDE_NAMES = ("target", "reference")
#: Kinds of ops next to which experts are chosen.
_ROUTING_KINDS = {"topk", "router", "scatter_add", "index_add"}
#: Relative L2 that weights of experts differ by from the same scores: softmax, sum and quotient in
#: float32. The finding may be about the numbers of the experts, which have no tolerance.
_ROUTING_TOLERANCE = 2e-6
#: Relative difference of two errors of the same numbers in two orders: summation alone.
_SAME_ERROR = 1e-9
_LOSS_KINDS = {"cross_entropy", "nll_loss", "log_softmax", "gather_elements"}


def load_arrays(index: ComparisonIndex, value_pair: ValuePair) -> tuple[Floats, Floats] | None:
    """Return both whole tensors in float64, the target's laid out like the reference's.

    None if one of them is missing or too large.
    """
    sources = list(zip(index.flows, value_pair.tensors, strict=True))
    sizes = [int(flow.tensors["size"].iat[tensor]) for flow, tensor in sources]
    if max(sizes) > MAX_ELEMENTS:
        return None
    if value_pair.group is not None:
        return _load_fused_arrays(index, value_pair.group)
    t, r = (load_readable_tensor(flow.trace, tensor) for flow, tensor in sources)
    if t is None or r is None or t.size != r.size:
        return None
    t, r = t.astype(np.float64), r.astype(np.float64)
    if value_pair.layout not in ("same", "reshape"):
        _, t, r = find_common_layout(t, r)
    if t.shape != r.shape:
        t = t.reshape(r.shape)
    return _load_slot_arrays(index, value_pair, r.shape, compute_residual(t, r)) or (t, r)


def _load_slot_arrays(
    index: ComparisonIndex, value_pair: ValuePair, shape: tuple[int, ...], error: float
) -> tuple[Floats, Floats] | None:
    """Return both tensors as the ops of the finding hold them; None if ``shape`` is that order.

    A pair is compared in a shape that both sides recorded. In a dump of a few ops that may be the
    one after a transposition, in which the arithmetic of the op is not seen. The order is used
    only if the two tensors differ as much in it.
    """
    if min(value_pair.slot_tensors) < 0:
        return None
    slot_shape = tuple(index.flows[1].tensors["shape"].iat[value_pair.slot_tensors[1]] or ())
    if _drop_unit_axes(slot_shape) == _drop_unit_axes(shape):
        return None
    t, r = (
        load_readable_tensor(flow.trace, tensor)
        for flow, tensor in zip(index.flows, value_pair.slot_tensors, strict=True)
    )
    if t is None or r is None or t.size != r.size:
        return None
    t, r = t.astype(np.float64).reshape(r.shape), r.astype(np.float64)
    is_same_order = np.isclose(compute_residual(t, r), error, rtol=_SAME_ERROR, atol=0)
    return (t, r) if is_same_order else None


def _drop_unit_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _load_fused_arrays(index: ComparisonIndex, group: FusedGroup) -> tuple[Floats, Floats] | None:
    """Return both sides of a group, the parts of one side joined as the other's fused tensor."""
    target_arrays = _load_whole_tensors(index.flows[0], group.target)
    reference_arrays = _load_whole_tensors(index.flows[1], group.reference)
    if target_arrays is None or reference_arrays is None:
        return None
    try:
        if len(target_arrays) == 1:
            return target_arrays[0], join_parts(target_arrays[0], reference_arrays)[1]
        return join_parts(reference_arrays[0], target_arrays)[1], reference_arrays[0]
    except ValueError:
        return None


def _load_whole_tensors(flow: Flow, values: Sequence[int]) -> list[Floats] | None:
    """Return the whole tensors of some values in float64; None if one of them is missing."""
    arrays = []
    for value in values:
        array = load_readable_tensor(flow.trace, find_whole_tensor(flow, value))
        if array is None:
            return None
        arrays.append(array.astype(np.float64))
    return arrays


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
    operands = [_collect_operands(index, side, values[side], ops[side]) for side in (0, 1)]
    consumer_kinds = [collect_consumer_kinds(index, side, values[side]) for side in (0, 1)]
    numbers = [tuple(_find_immediate_numbers(index.flows[side], ops[side])) for side in (0, 1)]
    scalings = [find_scalings(index, side, values[side]) for side in (0, 1)]
    is_near_loss = is_of_loss(index, finding, values)
    calls = [_read_call(index, side, values[side]) for side in (0, 1)]
    is_step_equal = has_equal_step(index, values) if finding.phase == OPTIMIZER else None
    for faulty, faithful in ((0, 1), (1, 0)):
        flow = index.flows[faithful]
        parameters: Sequence[Operand] = ()
        if finding.is_given:
            parameters = list(_find_parameters(index, faithful, arrays[0].size))
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
            find_other_values=cache(partial(_find_other_values, index, faithful, values[faithful])),
            find_parameters=partial(_list_parameters, index, faithful),
            find_given_values=partial(_list_given_values, index),
            depends_on=partial(depends_on, flow),
            find_moved_step=partial(find_moved_step, index, faithful),
            load_consumers=partial(_list_consumers, index, faithful, values[faithful]),
            load_region=partial(
                build_region,
                index,
                faithful,
                values[faithful],
                arrays[faithful],
                finding.tolerance,
            ),
            parameters=tuple(parameters),
            faulty_scalings=scalings[faulty],
            faithful_scalings=scalings[faithful],
        )


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


def is_routed(index: ComparisonIndex, finding: Finding, values: tuple[int, int]) -> bool:
    """Return whether experts are chosen next to a finding in the forward pass."""
    if finding.phase != FORWARD:
        return False
    for side in (0, 1):
        kinds = {index.kinds[side][op] for op in list_finding_ops(index, side, finding)}
        if _ROUTING_KINDS & (kinds | collect_consumer_kinds(index, side, values[side])):
            return True
    return False


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


def list_finding_ops(index: ComparisonIndex, side: int, finding: Finding) -> list[int]:
    """Return the ops of one side that the finding names."""
    ops = []
    for name in (finding.target_ops, finding.reference_ops)[side]:
        op = index.ops_by_name[side].get(name)
        if op is not None:
            ops.append(op)
    return ops


def _collect_operands(
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


def _make_operand(
    index: ComparisonIndex, side: int, value: int, tensor: int = -1
) -> Operand | None:
    """Return the operand; None if it has no whole tensor, or a too large one."""
    flow = index.flows[side]
    if tensor < 0 or not flow.tensors["file"].iat[tensor]:
        tensor = find_whole_tensor(flow, value)
    if tensor < 0 or flow.sizes[value] > MAX_ELEMENTS:
        return None
    producer = int(flow.producers[value])
    parameter = str(flow.list_column("parameter")[value])
    name = parameter
    if not parameter:
        name = str(flow.trace.ops["name"].iat[producer]) if producer >= 0 else "an input"
    return Operand(
        name=name,
        kind=index.get_producer_kind(side, value),
        parameter=parameter,
        agrees=value in index.agreed_classes[side],
        shape=tuple(flow.tensors["shape"].iat[tensor] or ()),
        load=_make_loader(flow, tensor),
        load_scalings=partial(find_scalings, index, side, value),
        value=value,
    )


def _make_loader(flow: Flow, tensor: int) -> Callable[[], AnyArray]:
    """Return a function that reads a tensor; an unreadable one gives NaN."""

    def load() -> AnyArray:
        array = load_readable_tensor(flow.trace, tensor)
        if array is not None:
            return array
        shape = tuple(flow.tensors["shape"].iat[tensor] or ())
        return np.full(shape, np.nan)

    return load


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


def _find_other_values(
    index: ComparisonIndex, side: int, value: int, shape: tuple[int, ...]
) -> Sequence[Operand]:
    """Return forward values of this shape that both sides have, the nearest before ``value`` first.

    Inputs of the run, such as the batch, come last.
    """
    flow = index.flows[side]
    size = int(np.prod(shape))
    phases, parameters = flow.list_column("phase"), flow.list_column("parameter")
    dtypes = flow.list_column("dtype")
    last_op = int(flow.producers[value])
    candidates = []
    for other in sorted(index.agreed_classes[side]):
        producer = int(flow.producers[other])
        is_earlier = phases[other] == FORWARD and producer < last_op
        if flow.sizes[other] != size or not is_earlier or parameters[other]:
            continue
        if is_floating(str(dtypes[other])):
            candidates.append((-producer, other))
    operands = []
    for _, other in sorted(candidates)[:_MAX_OTHER_VALUES]:
        operand = _make_operand(index, side, other)
        if operand is not None:
            operands.append(operand)
    return operands


def collect_consumer_kinds(index: ComparisonIndex, side: int, value: int) -> frozenset[str]:
    """Return the kinds of the ops that read a value, and of the consumers of their outputs."""
    flow, kinds = index.flows[side], index.kinds[side]
    consumer_kinds: set[str] = set()
    front = {value}
    for _ in range(_CONSUMER_STEPS):
        consumers = _find_consumers(index, side, front)
        front = set()
        for op in consumers:
            consumer_kinds.add(kinds[op])
            front.update(flow.writes[op])
        if len(front) > _MAX_CONSUMED_VALUES:
            break
    return frozenset(consumer_kinds)


def _list_consumers(
    index: ComparisonIndex, side: int, value: int
) -> Sequence[tuple[str, Sequence[Operand]]]:
    """Return (kind, other operands) of the ops that read a value."""
    flow, kinds = index.flows[side], index.kinds[side]
    consumers = []
    for op in sorted(_find_consumers(index, side, {value})):
        operands = []
        for other_value, tensor in list_op_inputs(flow, op):
            operand = None
            if other_value != value:
                operand = _make_operand(index, side, other_value, tensor)
            if operand is not None:
                operands.append(operand)
        consumers.append((kinds[op], operands))
    return consumers


def _find_consumers(index: ComparisonIndex, side: int, values: set[int]) -> set[int]:
    """Return the ops that read one of the values; module calls only if they are one operator."""
    flow, kinds = index.flows[side], index.kinds[side]
    levels = flow.trace.ops["level"]
    consumers: set[int] = set()
    for value in values:
        consumers.update(flow.consumers[value])
    return {op for op in consumers if levels.iat[op] == "op" or kinds[op] in GATE_COUNTS}


def is_of_loss(index: ComparisonIndex, finding: Finding, values: tuple[int, int]) -> bool:
    """Return whether a value belongs to the loss, or follows from the loss's gradient alone."""
    for side in (0, 1):
        ops = list_finding_ops(index, side, finding)
        if _is_near_loss(index, side, ops) or _follows_from_seed(index, side, values[side]):
            return True
    return False


def _is_near_loss(index: ComparisonIndex, side: int, ops: Sequence[int]) -> bool:
    """Return whether one of the ops belongs to a loss, or to the backward pass of a loss."""
    kinds = index.kinds[side]
    forward_ops = index.flows[side].trace.ops["forward"].to_numpy()
    op_kinds = {kinds[op].removeprefix("grad:") for op in ops}
    op_kinds |= {kinds[forward_ops[op]] for op in ops if forward_ops[op] >= 0}
    return bool(op_kinds & _LOSS_KINDS)


def _follows_from_seed(index: ComparisonIndex, side: int, value: int) -> bool:
    """Return whether a gradient was computed from the gradient of one number: that of the loss.

    No other gradient on the way to it may agree. Then everything up to the start of the backward
    pass differs, so no layer changed a correct gradient.
    """
    flow = index.flows[side]
    phases = flow.list_column("phase")
    front = [value]
    has_seed = False
    for gradient in front:  # grows while it is read
        if phases[gradient] != BACKWARD or flow.producers[gradient] < 0:
            return False
        for input_value in flow.reads[int(flow.producers[gradient])]:
            if phases[input_value] != BACKWARD or input_value in front:
                continue
            if flow.sizes[input_value] == 1:
                has_seed = True
            elif input_value in index.agreed_classes[side]:
                return False
            else:
                front.append(input_value)
        if len(front) > _MAX_SEED_OPS:
            return False
    return has_seed


def _list_given_values(index: ComparisonIndex, size: int) -> Sequence[Operand]:
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


def _list_parameters(index: ComparisonIndex, side: int, size: int) -> Sequence[Operand]:
    """Return the forward parameters of one side that have a size."""
    return list(_find_parameters(index, side, size))


def _find_parameters(index: ComparisonIndex, side: int, size: int) -> Iterator[Operand]:
    """Yield the forward parameters of one side that have a size."""
    flow = index.flows[side]
    parameters, phases = flow.list_column("parameter"), flow.list_column("phase")
    for value in np.flatnonzero(flow.sizes == size).tolist():
        if not parameters[value] or phases[value] != FORWARD:
            continue
        operand = _make_operand(index, side, value)
        if operand is not None:
            yield operand
