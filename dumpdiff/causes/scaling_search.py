"""Find the scalings of a value: the ops upstream that multiply it by one recorded number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.dtypes import MASK_MAGNITUDE, is_floating
from .comparison_index import ComparisonIndex
from .scalings import Scaling

#: Ops upstream of a value that are searched for scalings, at most.
_MAX_OPS = 24
#: Keyword arguments of fused attention and of fused softmax that scale the scores.
_SCALE_KEYWORDS = ("scale", "scale_value", "scaling", "softmax_scale", "scalar_value")
#: Relative distance of norms within which an op divided its tensor by its number. If it divided the
#: number by the tensor, the norms agree by chance only.
_MAX_NORM_DISTANCE = 1e-2


def find_scalings(index: ComparisonIndex, side: int, value: int) -> tuple[Scaling, ...]:
    """Return the scalings between a value and the last agreement upstream, in execution order.

    The search passes products of matrices, rearrangements, casts and masks, and one softmax. It
    ends at values that agree with the other side, and at all other ops.
    """
    scalings: dict[int, Scaling] = {}
    front = [_Input(value)]
    visited_values = set()
    for current in front:  # grows while it is read
        producer = int(index.flows[side].producers[current.value])
        is_agreed = current.value in index.agreed_classes[side]
        if producer < 0 or is_agreed or current.value in visited_values:
            continue
        visited_values.add(current.value)
        if len(visited_values) > _MAX_OPS:
            break
        read_step = _STEP_READERS.get(index.kinds[side][producer])
        step = read_step(_read_op(index, side, producer)) if read_step is not None else None
        if step is None:
            continue
        if step.scaling is not None:
            in_softmax = current.in_softmax or step.scaling.in_softmax
            scalings[producer] = replace(step.scaling, in_softmax=in_softmax)
        for step_input in step.inputs:
            in_softmax = current.in_softmax or step_input.in_softmax
            front.append(_Input(step_input.value, in_softmax))
    return tuple(scalings[op] for op in sorted(scalings))


@dataclass(frozen=True)
class _Input:
    """A value whose factor is a factor of the output, or of the scores that lead to it."""

    value: int
    in_softmax: bool = False


@dataclass(frozen=True)
class _Step:
    """What one op does with factors: the inputs that pass theirs on, and its own."""

    inputs: Sequence[_Input]
    scaling: Scaling | None = None


@dataclass(frozen=True)
class _Slot:
    """One input or output of an op; the value of a single number is its ``high``."""

    name: str  #: without "input."
    value: int  #: its class, -1 if none
    size: int
    is_floating: bool
    is_constant: bool
    low: float
    high: float
    norm: float


@dataclass(frozen=True)
class _RecordedOp:
    name: str  #: without the path of a graph
    inputs: Sequence[_Slot]
    output: _Slot

    def list_tensors(self) -> list[_Slot]:
        """Return the floating inputs of more than one element."""
        floating_inputs = [slot for slot in self.inputs if slot.value >= 0 and slot.is_floating]
        return [slot for slot in floating_inputs if slot.size > 1]

    def find_keyword(self, *names: str) -> float | None:
        """Return the number of the first input with one of these names; None if there is none."""
        for slot in self.inputs:
            if slot.name in names and slot.size == 1 and np.isfinite(slot.high):
                return slot.high
        return None

    def make_scaling(
        self, verb: str, number: float | None, factor: float | None = None
    ) -> Scaling | None:
        """Return the scaling by a recorded number; its factor is the number unless given."""
        if number is None:
            return None
        return Scaling(self.name, f"{verb} {number:.6g}", number if factor is None else factor)


def _read_op(index: ComparisonIndex, side: int, op: int) -> _RecordedOp:
    """Return the inputs and the first output of an op, which has one."""
    flow = index.flows[side]
    tensors = flow.tensors
    inputs: list[_Slot] = []
    outputs: list[_Slot] = []
    for row in flow.get_tensor_ids(op).tolist():
        slot = _Slot(
            name=str(tensors["slot"].iat[row]).partition(".")[2],
            value=int(flow.tensor_class[row]),
            size=int(tensors["size"].iat[row]),
            is_floating=is_floating(str(tensors["dtype"].iat[row])),
            is_constant=bool(tensors["constant"].iat[row]),
            low=float(tensors["min"].iat[row]),
            high=float(tensors["max"].iat[row]),
            norm=float(tensors["norm"].iat[row]),
        )
        is_output = tensors["slot_kind"].iat[row] == "output"
        (outputs if is_output else inputs).append(slot)
    name = str(flow.trace.ops["name"].iat[op]).rpartition("/")[2]
    return _RecordedOp(name, inputs, outputs[0])


def _pass_first(op: _RecordedOp) -> _Step:
    """Rearrangements, casts, sums and masks: the factor of the first tensor is the output's."""
    return _Step([_Input(slot.value) for slot in op.list_tensors()[:1]])


def _pass_both(op: _RecordedOp) -> _Step:
    """Products of matrices, and choices between two tensors."""
    return _Step([_Input(slot.value) for slot in op.list_tensors()[:2]])


def _read_mean(op: _RecordedOp) -> _Step | None:
    tensors = op.list_tensors()
    if not tensors or min(tensors[0].size, op.output.size) < 1:
        return None
    n_elements = tensors[0].size / op.output.size
    scaling = op.make_scaling("averages over", n_elements, 1 / n_elements)
    return _Step([_Input(tensors[0].value)], scaling)


def _read_scaled_product(op: _RecordedOp) -> _Step:
    """Read beta c + alpha a b: alpha is a factor of the product."""
    inputs = [_Input(slot.value) for slot in op.list_tensors()[1:3]]
    return _Step(inputs, op.make_scaling("has alpha =", op.find_keyword("alpha")))


def _read_interpolation(op: _RecordedOp) -> _Step | None:
    """Read x + w (a - x) with x = 0, as in the first step of a moment; None for other x."""
    if len(op.inputs) < 3:
        return None
    start, end, weight = op.inputs[:3]
    if start.norm != 0 or not _is_usable(weight):
        return None
    return _Step(_list_inputs(end), op.make_scaling("takes a share of", weight.high))


def _read_masking_sum(op: _RecordedOp) -> _Step | None:
    """Read x + mask, with a mask of zeros and large negative numbers; None for other sums."""
    tensors = op.list_tensors()
    if len(tensors) != 2:
        return None
    for tensor, mask in (tensors, tensors[::-1]):
        if mask.high == 0 and mask.low < -MASK_MAGNITUDE:
            return _Step([_Input(tensor.value)])
    return None


def _read_softmax(op: _RecordedOp) -> _Step:
    inputs = [_Input(slot.value, in_softmax=True) for slot in op.list_tensors()[:1]]
    return _Step(inputs, _read_score_scale(op))


def _read_attention(op: _RecordedOp) -> _Step:
    """Read fused attention: queries and keys make the scores, values do not."""
    tensors = op.list_tensors()
    inputs = [_Input(slot.value, in_softmax=True) for slot in tensors[:2]]
    inputs += [_Input(slot.value) for slot in tensors[2:3]]
    return _Step(inputs, _read_score_scale(op))


def _read_score_scale(op: _RecordedOp) -> Scaling | None:
    scaling = op.make_scaling("has scale =", op.find_keyword(*_SCALE_KEYWORDS))
    return None if scaling is None else replace(scaling, in_softmax=True)


def _read_multiplication(op: _RecordedOp) -> _Step | None:
    """Read x s or s x for one number s; None for other products."""
    if len(op.inputs) < 2:
        return None
    tensor, number = op.inputs[:2]
    if _is_number_first(tensor, number):
        tensor, number = number, tensor
    is_ambiguous = tensor.size == 1 and not number.is_constant
    if is_ambiguous or not _is_usable(number):
        return None
    return _Step(_list_inputs(tensor), op.make_scaling("multiplies by", number.high))


def _read_division(op: _RecordedOp) -> _Step | None:
    """Read x / s for one number s; None for other quotients.

    s / x is no multiple of x. A record may hold the operands of a reversed call in either order, so
    a number in the first slot is the divisor only if the norms say so.
    """
    if len(op.inputs) < 2:
        return None
    tensor, number = op.inputs[:2]
    is_reversed = _is_number_first(tensor, number)
    if is_reversed:
        tensor, number = number, tensor
    if not _is_usable(number):
        return None
    quotient = tensor.norm / abs(number.high)
    if is_reversed and not abs(op.output.norm - quotient) <= _MAX_NORM_DISTANCE * quotient:
        return None
    return _Step(_list_inputs(tensor), op.make_scaling("divides by", number.high, 1 / number.high))


def _is_number_first(first: _Slot, second: _Slot) -> bool:
    return first.size == 1 and (second.size > 1 or first.is_constant)


def _is_usable(number: _Slot) -> bool:
    return number.size == 1 and bool(np.isfinite(number.high)) and number.high != 0


def _list_inputs(tensor: _Slot) -> Sequence[_Input]:
    return [_Input(tensor.value)] if tensor.value >= 0 else []


#: Canonical kind -> function that reads what the op does with factors. Other ops pass none on.
_STEP_READERS: Mapping[str, Callable[[_RecordedOp], _Step | None]] = {
    **dict.fromkeys(
        ("reshape", "transpose", "expand_dims", "squeeze", "contiguous", "identity", "cast"),
        _pass_first,
    ),
    **dict.fromkeys(("sum", "masked_fill", "tril", "triu"), _pass_first),
    **dict.fromkeys(("matmul", "where"), _pass_both),
    "mul": _read_multiplication,
    "div": _read_division,
    "mean": _read_mean,
    "add": _read_masking_sum,
    "lerp": _read_interpolation,
    "addmm": _read_scaled_product,
    **dict.fromkeys(("softmax", "scaled_masked_softmax"), _read_softmax),
    "attention": _read_attention,
}
