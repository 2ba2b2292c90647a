"""An operator run again in float64: how it enlarges errors, and which side is more exact.

This is done only where a value is beyond its tolerance, so a clean pair costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..comparison.layouts import find_common_layout
from ..comparison.mask_fill import find_fill_limit, flag_fill
from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats
from ..model.dtypes import get_unit_roundoff, is_floating
from ..model.recorded_shapes import load_readable_tensor
from ..operators import (
    KINDS,
    Execution,
    compute_gradients,
    compute_interpretations,
    compute_relative_distance,
    read_execution,
)
from .joint_graph import JointGraph

#: Elements that an op reads and writes. A larger op would take seconds.
_MAX_ELEMENTS = 1 << 21
#: Random perturbations; their root mean square counts.
_N_PERTURBATIONS = 4
#: Relative L2 from which on what was run again is not the op as it ran: a backward record is named
#: as its forward call is, and a call may have arguments that no record has.
_OTHER_OP_ERROR = 0.05
#: Seed of the signs of the perturbations, so that one dump always has one answer.
_SEED = 20020801
#: Standard deviations allowed. The error of one number is within three of them with probability
#: 99.7 %; random perturbations show one, where the output is a single number. JCGM 100:2008, table
#: G.1.
_COVERAGE_FACTOR = 3.0
#: How many times the error of one side that of the other may be, as in PyTorch's check of compiled
#: models (``torch._dynamo.utils.same``), in general and for narrow types and small tensors.
_ERROR_FACTOR = 2.0
_WIDE_ERROR_FACTOR = 3.0
#: Elements below which that check uses the wide factor.
_SMALL_TENSOR = 1000
#: Unit roundoff of float32.
_FLOAT32_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Recomputation:
    """One op of a side, run in float64 on its recorded inputs, and what the other side has."""

    #: relative error of the output over that of the inputs, with a safety factor; NaN if unknown
    amplification: float
    error: float  #: of the side's own output against the exact one, relative L2
    other_error: float  #: the same for the other side's output, whatever its inputs
    factor: float  #: how many times the own error that of the other side may be
    #: of the output there against the op run on the inputs there; NaN if these are unknown
    exchanged_error: float = float("nan")

    @property
    def ratio(self) -> float:
        """The other side's error over the own one; NaN if the own output is exact."""
        return self.other_error / self.error if self.error > 0 else float("nan")

    def follows_inputs(self, tolerance: float) -> bool:
        """Return whether the other side's output is what this op makes of the inputs there.

        Then the outputs differ only because the inputs do, although these agree: an op that divides
        by small numbers, as Adam does, enlarges the noise in them far more than its conditioning
        says. That its inputs explain a change of the same size would not do: the output could be
        wrong by as much for another reason.
        """
        return self.error <= tolerance and self.exchanged_error <= tolerance

    def is_explained(self, tolerance: float, input_error: float) -> bool:
        """Return whether nothing diverges here: see the two conditions."""
        return self.follows_inputs(tolerance) or self.is_equally_accurate(tolerance, input_error)

    def is_equally_accurate(self, tolerance: float, input_error: float) -> bool:
        """Return whether the other side is as near to the exact result as this one is.

        Its error may be ``factor`` times the own one, plus what inputs with a relative
        ``input_error`` cause. The recomputation must explain the own output to within
        ``tolerance``; otherwise it is not the op as it ran.
        """
        carried_error = 0.0
        if input_error > 0 and np.isfinite(self.amplification):
            carried_error = self.amplification * input_error
        allowed_error = self.factor * self.error + carried_error
        return self.error <= tolerance and self.other_error <= allowed_error


#: The ops of target and reference, run again; None for one that cannot be.
RecomputationOfSides = tuple[Recomputation | None, Recomputation | None]


@dataclass(frozen=True)
class _ExactOp:
    """An op with its exact output."""

    side: int  #: whose op it is: 0 the target, 1 the reference
    kind: str
    is_gradient: bool  #: whether it gives the gradient of the first input of this kind
    rows: tuple[int, ...]  #: ids of its tensors
    execution: Execution
    interpretation: int  #: which interpretation of the call explains the recorded output best
    output: Floats
    #: elements of the output that count; None if all do. Mask fill does not: its size would hide
    #: every error of the others
    counted: Flags | None

    def measure(self, array: AnyArray, exact: AnyArray) -> float:
        """Return the relative L2 distance of two outputs over the elements that count."""
        if self.counted is None or {array.size, exact.size} != {self.counted.size}:
            return compute_relative_distance(array, exact)
        return compute_relative_distance(
            array.reshape(-1)[self.counted], exact.reshape(-1)[self.counted]
        )


def recompute_op(graph: JointGraph, node: int, side: int) -> Recomputation | None:
    """Run the producer of a pair's value again: the op of the target (side 0) or reference (1).

    Returns None if whole tensors are missing, or if the kind cannot be run or does not give what
    was recorded there. The amplification is measured by moving those inputs that differ between
    the sides by one unit in the last place of their dtype: all up, as a common factor does, or in
    random directions, whichever enlarges more. This is the condition number in the direction of the
    actual errors (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
    1.6), not its supremum.
    """
    pairs = graph.comparison.pairs
    if pairs["group"].iat[node] is not None or pairs["metric"].iat[node] != "relative_l2":
        return None
    op = _run_op(graph, node, side)
    if op is None:
        return None
    error = op.measure(op.execution.output, op.output)
    other_output = _load_other_tensor(graph, node, side, op.execution.output)
    if other_output is None or not error < _OTHER_OP_ERROR:
        return None
    is_wide = op.output.size < _SMALL_TENSOR or _has_narrow_dtype(graph, node)
    return Recomputation(
        _measure_amplification(graph, op),
        error,
        op.measure(other_output, op.output),
        _WIDE_ERROR_FACTOR if is_wide else _ERROR_FACTOR,
        _compute_exchanged_error(graph, op, other_output),
    )


def _compute_exchanged_error(graph: JointGraph, op: _ExactOp, other_output: AnyArray) -> float:
    """Return the distance of the other side's output from this op on the inputs of that side.

    These are the partners of the inputs that differ, whatever ops that side has instead. NaN if it
    is not known which inputs differ, or if one does not agree with its partner.
    """
    inputs = list(op.execution.inputs)
    for position, node, _ in _find_differing_inputs(graph, op):
        before = np.asarray(inputs[position], dtype=np.float64)
        after = _load_other_tensor(graph, node, op.side, before)
        if after is None or not _agrees(graph, node, after.reshape(before.shape), before):
            return float("nan")
        inputs[position] = after.reshape(before.shape)
    output = _compute_output(op, inputs)
    return float("nan") if output is None else op.measure(other_output, output)


def _agrees(graph: JointGraph, node: int, after: AnyArray, before: AnyArray) -> bool:
    """Return whether a pair is within its own tolerance, and so are two tensors of it.

    A value has tensors in several layouts, and the pair was compared in one of them. The values of
    a slot pair are no partners.
    """
    pair = graph.comparison.pairs.iloc[node]
    is_pair_of_values = pair["slot_pair"] is None and pair["error"] <= pair["tolerance"]
    return is_pair_of_values and bool(compute_relative_distance(after, before) <= pair["tolerance"])


def _run_op(graph: JointGraph, node: int, side: int) -> _ExactOp | None:
    """Return the producer of a node's value on a side with its exact output."""
    own = graph.sides[side]
    flow, op = own.flow, own.find_producer(node)
    if op < 0 or own.kinds[op] not in KINDS:
        return None
    kind, rows = own.kinds[op], flow.get_tensor_ids(op).tolist()
    sizes = flow.tensors["size"].to_numpy()[rows]
    value = int(own.classes[node])
    if sizes.clip(min=0).sum() > _MAX_ELEMENTS or not _is_first_output(flow, rows, value):
        return None
    execution = read_execution(flow.trace, rows)
    call = int(flow.calls[op])
    if execution is not None and call >= 0:
        execution = _add_call(flow, execution, call)
        rows += flow.get_tensor_ids(call).tolist()
    if execution is None:
        return None
    outputs = _list_outputs(kind, call >= 0, execution, execution.inputs)
    if not outputs:
        return None
    distances = [compute_relative_distance(output, execution.output) for output in outputs]
    interpretation = int(np.argmin(distances))
    counted = None
    if graph.comparison.pairs["has_mask_fill"].iat[node]:
        recorded = execution.output.reshape(-1)
        limit = find_fill_limit(recorded)
        counted = ~flag_fill(recorded, limit) if limit else None
    return _ExactOp(
        side,
        kind,
        call >= 0,
        tuple(rows),
        execution,
        interpretation,
        outputs[interpretation],
        counted,
    )


def _add_call(flow: Flow, record: Execution, call: int) -> Execution | None:
    """Return a backward record with what its forward call read."""
    forward = read_execution(flow.trace, flow.get_tensor_ids(call).tolist())
    if forward is None:
        return None
    return Execution((*record.inputs, *forward.inputs), forward.keywords, record.output)


def _list_outputs(
    kind: str, is_gradient: bool, execution: Execution, inputs: Sequence[Any]
) -> list[Floats]:
    """Return the exact output of every interpretation of an op, run with these inputs."""
    if is_gradient:
        interpretations = compute_gradients(kind, inputs, execution.keywords)
    else:
        interpretations = compute_interpretations(
            kind, inputs, execution.keywords, output_shape=execution.output.shape
        )
    return [output for _, output in interpretations]


def _has_narrow_dtype(graph: JointGraph, node: int) -> bool:
    """Return whether either side has the value in a dtype coarser than float32."""
    alignment = graph.comparison.alignment
    dtype_t = alignment.target.list_column("dtype")[int(graph.target_classes[node])]
    dtype_r = alignment.reference.list_column("dtype")[int(graph.reference_classes[node])]
    return max(get_unit_roundoff(str(dtype_t)), get_unit_roundoff(str(dtype_r))) > _FLOAT32_ROUNDOFF


def _is_first_output(flow: Flow, rows: Sequence[int], value: int) -> bool:
    """Return whether the value is the op's first output, which is the one that is recomputed."""
    outputs = [row for row in rows if flow.tensors["slot_kind"].iat[row] == "output"]
    return bool(outputs) and flow.tensor_class[outputs[0]] == value


def _load_other_tensor(graph: JointGraph, node: int, side: int, array: AnyArray) -> AnyArray | None:
    """Return the tensor that the other side has of a pair, in the layout of this array.

    None if that is impossible.
    """
    pair = graph.comparison.pairs.iloc[node]
    tensor = int(pair["reference_tensor" if side == 0 else "target_tensor"])
    other_array = load_readable_tensor(graph.sides[1 - side].flow.trace, tensor)
    if other_array is None or other_array.size != array.size:
        return None
    # an op may read the pair's value in another layout than that in which it was compared
    is_near = bool(compute_relative_distance(other_array, array) < _OTHER_OP_ERROR)
    if pair["layout"] in ("same", "reshape") and is_near:
        return other_array
    layout, moved_array, common_array = find_common_layout(other_array, array)
    if layout.startswith("reference") or common_array.shape != array.shape:
        return None
    return moved_array


def _measure_amplification(graph: JointGraph, op: _ExactOp) -> float:
    """Return the allowed relative error of the output over that of the inputs that differ.

    NaN if it is not known which inputs differ, or if none does.
    """
    moved_inputs = _find_differing_inputs(graph, op)
    if not moved_inputs:
        return float("nan")
    random = np.random.default_rng(_SEED)
    coherent = _measure_enlargement(op, moved_inputs, None)
    scattered = [_measure_enlargement(op, moved_inputs, random) for _ in range(_N_PERTURBATIONS)]
    rms = np.sqrt(np.mean(np.square(scattered)))
    return _COVERAGE_FACTOR * float(np.maximum(coherent, rms))


def _find_differing_inputs(graph: JointGraph, op: _ExactOp) -> list[tuple[int, int, float]]:
    """Return (position, node, unit roundoff) of the inputs that differ, none if it is not known."""
    own = graph.sides[op.side]
    flow, errors = own.flow, graph.comparison.pairs["error"].to_numpy()
    slot_kinds, dtypes = flow.tensors["slot_kind"], flow.tensors["dtype"]
    differing_inputs: list[tuple[int, int, float]] = []
    position = 0
    for row in op.rows:
        if slot_kinds.iat[row] == "output" or not _is_positional(flow, row):
            continue
        value, dtype = int(flow.tensor_class[row]), str(dtypes.iat[row])
        if value >= 0 and is_floating(dtype):
            node = int(own.nodes[value])
            if node >= len(errors) or not np.isfinite(errors[node]):
                return []
            if errors[node] > 0:
                roundoff = max(get_unit_roundoff(dtype), _FLOAT32_ROUNDOFF)
                differing_inputs.append((position, node, roundoff))
        position += 1
    return differing_inputs if position == len(op.execution.inputs) else []


def _is_positional(flow: Flow, row: int) -> bool:
    """Return whether a tensor is in ``Execution.inputs``, not in its keyword arguments."""
    slot = str(flow.tensors["slot"].iat[row]).partition(".")[2]
    return (
        bool(flow.tensors["slot_kind"].iat[row] == "parameter") or slot.replace(".", "").isdecimal()
    )


def _measure_enlargement(
    op: _ExactOp,
    moved_inputs: Sequence[tuple[int, int, float]],
    random: np.random.Generator | None,
) -> float:
    """Return the relative change of the output over the largest one of the moved inputs.

    Inputs move by one unit in the last place: up, or in random directions.
    """
    inputs = list(op.execution.inputs)
    input_change = 0.0
    for position, _, roundoff in moved_inputs:
        before = np.asarray(inputs[position], dtype=np.float64)
        signs = 1.0 if random is None else random.choice([-1.0, 1.0], before.shape)
        after = before + signs * _compute_last_place(before, roundoff)
        inputs[position] = after
        input_change = max(input_change, compute_relative_distance(after, before))
    output = _compute_output(op, inputs)
    if output is None or not input_change > 0:
        return float("nan")
    return op.measure(output, op.output) / input_change


def _compute_output(op: _ExactOp, inputs: Sequence[Any]) -> Floats | None:
    """Return the exact output of an op with other inputs, None if it cannot be run with them."""
    outputs = _list_outputs(op.kind, op.is_gradient, op.execution, inputs)
    return outputs[op.interpretation] if op.interpretation < len(outputs) else None


def _compute_last_place(array: AnyArray, roundoff: float) -> Floats:
    """Return one unit in the last place of every element, in the dtype of this unit roundoff.

    The sign is that of the element; 0 for 0, NaN and Inf.
    """
    # |x| is in [2**(e-1), 2**e), where neighbors differ by 2 u 2**(e-1)
    _, exponents = np.frexp(array)
    is_regular = np.isfinite(array) & (array != 0)
    places: Floats = np.where(is_regular, np.ldexp(roundoff, exponents), 0.0)
    return np.copysign(places, array)
