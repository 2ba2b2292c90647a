"""From a comparison and a finding to the situation: the arrays of both sides around the place where they part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..alignment import FusedGroup
from ..comparison.fused_tensors import join_parts
from ..comparison.layouts import find_common_layout
from ..graph import Flow
from ..model.arrays import AnyArray
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.trace import FORWARD
from ..operators import Call, read_execution
from ..operators.call import make_call
from ..operators.execution import load_whole_tensor
from .comparison_index import ValuePair, ComparisonIndex, find_inputs, list_op_inputs, find_whole_tensor
from .fault_case import Operand, FaultCase

MAX_ELEMENTS = 1 << 23  #: elements: 64 MB as float64; what is larger is not recomputed
_DEPTH = 6  # ops upstream that a value may come from
_MOST = 40  # operands
_REARRANGED = 0.2  # relative L2: elements in another order are farther apart than this


def load_arrays(around: ComparisonIndex, sought: ValuePair) -> tuple[AnyArray, AnyArray] | None:
    """Both whole tensors, the target's laid out like the reference's; None without them, or if they are too large."""
    flows = around.flows
    sizes = [
        int(flow.tensors["size"].iat[tensor])
        for flow, tensor in zip(flows, sought.tensors, strict=True)
    ]
    if max(sizes) > MAX_ELEMENTS:
        return None
    if sought.group is not None:
        return _fused_arrays(around, sought.group)
    t, r = (load_whole_tensor(flow.trace, tensor) for flow, tensor in zip(flows, sought.tensors, strict=True))
    if t is None or r is None or t.size != r.size:
        return None
    t, r = t.astype(np.float64), r.astype(np.float64)
    if sought.layout not in ("same", "reshape"):
        _, t, r = find_common_layout(t, r)
    return (t.reshape(r.shape) if t.shape != r.shape else t), r


def _fused_arrays(around: ComparisonIndex, group: FusedGroup) -> tuple[AnyArray, AnyArray] | None:
    """Both sides of a group, the parts put together as the other side's fused tensor has them."""
    sides = [
        [load_whole_tensor(flow.trace, find_whole_tensor(flow, value)) for value in values]
        for flow, values in zip(around.flows, (group.target, group.reference), strict=True)
    ]
    ours, theirs = ([v.astype(np.float64) for v in arrays if v is not None] for arrays in sides)
    if len(ours) < len(group.target) or len(theirs) < len(group.reference):
        return None
    try:
        if len(ours) == 1:
            return ours[0], join_parts(ours[0], theirs)[1]
        return join_parts(theirs[0], ours)[1], theirs[0]
    except ValueError:
        return None


def build_fault_cases(around: ComparisonIndex, finding: Finding, sought: ValuePair) -> Iterator[FaultCase]:
    """The finding with the target as the side that departs, then with the reference; none without whole tensors."""
    arrays = load_arrays(around, sought)
    if arrays is None:
        return
    operands = [_operands(around, side, sought.classes[side], finding) for side in (0, 1)]
    near_loss = any(_loss_near(around, side, _ops(around, side, finding)) for side in (0, 1))
    for departing, faithful in ((0, 1), (1, 0)):
        value = sought.classes[faithful]
        flow = around.flows[faithful]
        ops = _ops(around, faithful, finding)
        yield FaultCase(
            finding=finding,
            faulty_role=("target", "reference")[departing],
            faulty=arrays[departing],
            faithful=arrays[faithful],
            operands=operands[faithful],
            faulty_operands=operands[departing],
            numbers=tuple(_numbers(flow, ops)),
            kinds=tuple(around.kinds[faithful][op] for op in ops),
            consumer_kinds=_after(around, faithful, value)
            | _after(around, departing, sought.classes[departing]),
            tolerance=finding.tolerance,
            dtype=str(flow.list_column("dtype")[value]),
            call=_call(around, faithful, value),
            is_near_loss=near_loss,
            parameters=tuple(_parameters(around, faithful, arrays[0].size)) if finding.is_given else (),
        )


def _call(around: ComparisonIndex, side: int, value: int) -> Call | None:
    """The op that made a value, with its inputs; None if one is missing, or the value is not its first output."""
    flow = around.flows[side]
    maker = int(flow.producers[value])
    if maker < 0:
        return None
    rows = flow.get_tensor_ids(maker).tolist()
    outputs = [row for row in rows if flow.tensors["role"].iat[row] == "output"]
    if (
        not outputs
        or flow.tensor_class[outputs[0]] != value
        or max(flow.tensors["size"].iloc[rows]) > MAX_ELEMENTS
    ):
        return None
    ran = read_execution(flow.trace, rows)
    return (
        None
        if ran is None
        else make_call(around.kinds[side][maker], ran.inputs, ran.keywords, ran.output.shape)
    )


def _ops(around: ComparisonIndex, side: int, finding: Finding) -> list[int]:
    names = (finding.target_ops, finding.reference_ops)[side]
    return [around.ops_by_name[side][name] for name in names if name in around.ops_by_name[side]]


def _operands(around: ComparisonIndex, side: int, value: int, finding: Finding) -> tuple[Operand, ...]:
    """Values upstream, breadth first, each as the op that leads here read it; then what the module call was given."""
    flow = around.flows[side]
    found: dict[int, Operand | None] = {value: None}
    front = [value]
    for _ in range(_DEPTH):
        after = []
        for v in front:
            for above, tensor in find_inputs(flow, v):
                if above not in found:
                    found[above] = _operand(around, side, above, tensor)
                    after.append(above)
        front = after
        if len(found) >= _MOST:
            break
    for op in _ops(around, side, finding):
        for above, tensor in (*list_op_inputs(flow, op), *((v, -1) for v in _module_reads(flow, op))):
            if above not in found:
                found[above] = _operand(around, side, above, tensor)
    return tuple(operand for operand in found.values() if operand is not None)


def _module_reads(flow: Flow, op: int) -> Sequence[int]:
    """What the nearest module call around an op was given."""
    parent = int(flow.trace.ops["parent"].iat[op])
    return flow.reads[parent] if parent >= 0 else ()


def _operand(around: ComparisonIndex, side: int, value: int, tensor: int = -1) -> Operand | None:
    flow = around.flows[side]
    if tensor < 0 or not flow.tensors["file"].iat[tensor]:
        tensor = find_whole_tensor(flow, value)
    if tensor < 0 or flow.sizes[value] > MAX_ELEMENTS:
        return None
    maker = int(flow.producers[value])
    parameter = str(flow.list_column("parameter")[value])
    return Operand(
        name=parameter or (str(flow.trace.ops["name"].iat[maker]) if maker >= 0 else "an input"),
        kind=around.get_producer_kind(side, value),
        parameter=parameter,
        agrees=value in around.agreed_classes[side],
        shape=tuple(flow.tensors["shape"].iat[tensor] or ()),
        load=_loader(flow, tensor),
    )


def _loader(flow: Flow, tensor: int) -> Callable[[], AnyArray]:
    def load() -> AnyArray:
        array = load_whole_tensor(flow.trace, tensor)
        return (
            np.full(tuple(flow.tensors["shape"].iat[tensor] or ()), np.nan)
            if array is None
            else array
        )

    return load


def _numbers(flow: Flow, ops: Sequence[int]) -> Iterator[float]:
    for op in ops:
        for row in flow.get_tensor_ids(op).tolist():
            if flow.tensors["constant"].iat[row] and flow.tensors["size"].iat[row] == 1:
                number = float(flow.tensors["max"].iat[row])
                if is_floating(str(flow.tensors["dtype"].iat[row])) and np.isfinite(number):
                    yield number


def _after(around: ComparisonIndex, side: int, value: int) -> frozenset[str]:
    """Kinds of the ops that read a value, and of those that read what they write, past rearrangements."""
    flow, kinds = around.flows[side], around.kinds[side]
    found: set[str] = set()
    front = {value}
    for _ in range(3):
        readers = {
            op for v in front for op in flow.consumers[v] if flow.trace.ops["level"].iat[op] == "op"
        }
        found |= {kinds[op] for op in readers}
        front = {w for op in readers for w in flow.writes[op]}
        if len(front) > 64:
            break
    return frozenset(found)


def _loss_near(around: ComparisonIndex, side: int, ops: Sequence[int]) -> bool:
    """One of the ops is of a loss, or the backward of one."""
    flow, kinds = around.flows[side], around.kinds[side]
    forward = flow.trace.ops["forward"].to_numpy()
    named = {kinds[op].removeprefix("grad:") for op in ops} | {
        kinds[forward[op]] for op in ops if forward[op] >= 0
    }
    return bool(named & {"cross_entropy", "nll_loss", "log_softmax", "gather_elements"})


def _parameters(around: ComparisonIndex, side: int, size: int) -> Iterator[Operand]:
    """The parameters of a size, of one side."""
    flow = around.flows[side]
    for value, name in enumerate(flow.list_column("parameter")):
        if name and flow.sizes[value] == size and flow.list_column("phase")[value] == FORWARD:
            operand = _operand(around, side, value)
            if operand is not None:
                yield operand
