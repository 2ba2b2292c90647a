"""Contradictions between the statistics of an op's output and those of its inputs.

What an operator computes bounds the statistics of its output: the mean of a sum is the sum of the
means, a negation exchanges max and min, the largest square root is that of the largest number.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..model.arrays import Flags, Floats, Ints
from ..model.trace import Trace
from ..readers.call_records import is_in_place
from ..rulebook import Rules
from .checkable_ops import CheckableOps, collect_ops
from .contradictions import Check, Contradiction
from .descriptions import build_contradiction, format_statistics
from .operator_bounds import Bounds, iterate_bounds
from .tolerances import RecordedNumbers

CHECK_NAME = "results of operators and their inputs"
#: Relative error of an operator whose function hardware approximates; damage is larger.
_FUNCTION_ERROR = 1e-3
#: Units in the last place that an output may be off besides.
_OUTPUT_UNITS = 4.0
#: Share of the ops of one kind that may contradict a relation, besides one. More of them mean that
#: the operator is another one than its name says.
_MAX_WRONG_SHARE = 0.1
#: Updates in place that must keep to a relation: their inputs were recorded before the update.
_MIN_KEEPING = 2
#: Kinds of which a NaN in any input is a NaN in the output.
_SPREADING = ("add", "sub", "mul", "div", "neg", "square", "sqrt", "matmul", "sum", "mean")


def check_operators(
    trace: Trace,
    numbers: RecordedNumbers,
    rules: Rules,
    contradicted: Collection[int] = (),
) -> Check:
    """Check that the statistics of an output can follow from those of the inputs.

    Only operators of the forward kind count whose inputs are all recorded as finite numbers, not
    backward records. An update in place may be recorded before or after it is made. Ops with
    ``contradicted`` tensors are left out. A relation that many ops of a kind contradict is not what
    this kind computes.
    """
    lost_nans = _find_lost_nans(trace, numbers, rules)
    ops = collect_ops(trace, numbers, contradicted, rules)
    if not len(ops.ids):
        return Check(CHECK_NAME, len(lost_nans), tuple(lost_nans))
    is_checked = np.zeros(len(ops.ids), dtype=bool)
    contradictions: dict[int, Contradiction] = {}
    for bounds in iterate_bounds(ops, numbers):
        positions = bounds.positions
        rows = ops.outputs[positions]
        recorded = getattr(numbers, bounds.statistic)[rows]
        slack = _compute_slack(numbers, ops, bounds)
        with np.errstate(all="ignore"):
            is_known = np.isfinite(recorded) & np.isfinite(slack)
            is_known &= np.isfinite(bounds.lower) | np.isfinite(bounds.upper)
            is_wrong = recorded < bounds.lower - slack
            is_wrong |= recorded > bounds.upper + slack
        is_wrong &= is_known
        is_wrong &= _flag_understood(ops, positions, is_known, is_wrong)
        is_checked[positions[is_known]] = True
        for index in np.flatnonzero(is_wrong).tolist():
            row = int(rows[index])
            if row not in contradictions:
                contradictions[row] = _describe(trace, ops, bounds, index)
    items = sorted([*lost_nans, *contradictions.values()], key=lambda item: item.tensor)
    return Check(CHECK_NAME, int(is_checked.sum()) + len(lost_nans), tuple(items))


def _find_lost_nans(trace: Trace, numbers: RecordedNumbers, rules: Rules) -> list[Contradiction]:
    """Return the inputs that hold a NaN although the output of their op does not."""
    tensors, op_table = trace.tensors, trace.ops
    ops = tensors["op"].to_numpy()
    is_trusted = tensors["trusted"].to_numpy()
    is_output = tensors["slot_kind"].to_numpy() == "output"
    is_nan = np.isnan(numbers.high) & (tensors["nonfinite"] == 1).to_numpy()
    inputs = np.flatnonzero(is_nan & is_trusted & ~is_output)
    if not len(inputs):
        return []
    is_finite = np.isfinite(numbers.high) & np.isfinite(numbers.low) & np.isfinite(numbers.norm)
    output_of_op = {
        int(ops[row]): row for row in np.flatnonzero(is_finite & is_trusted & is_output).tolist()
    }
    contradictions = []
    for row in inputs.tolist():
        op = int(ops[row])
        kind = str(op_table["kind"].iat[op])
        is_forward_op = op_table["level"].iat[op] == "op" and op_table["forward"].iat[op] < 0
        is_spreading = rules.resolve_kind(kind) in _SPREADING and not _is_special(kind)
        if op in output_of_op and is_forward_op and is_spreading:
            output = output_of_op[op]
            slot = tensors["slot"].iat[output]
            computed = f"{slot} has {format_statistics(trace, output)}"
            item = build_contradiction(trace, "result", row, "holds NaN", computed)
            contradictions.append(item)
    return contradictions


def _is_special(kind: str) -> bool:
    """Return whether a call skips NaN or updates its input in place."""
    name = kind.rpartition(".")[2]
    return name.startswith(("nan", "Assign")) or is_in_place(kind)


def _flag_understood(ops: CheckableOps, positions: Ints, is_known: Flags, is_wrong: Flags) -> Flags:
    """Return whether nearly all ops of the kind keep to a relation.

    One may contradict it in any case, of updates in place only if at least two keep to it.
    """
    is_updating = ops.is_in_place[positions]
    groups = 2 * ops.kind_numbers[positions] + is_updating
    n_known = np.bincount(groups[is_known], minlength=groups.max(initial=0) + 1)[groups]
    n_wrong = np.bincount(groups[is_wrong], minlength=groups.max(initial=0) + 1)[groups]
    flags: Flags = n_wrong <= np.maximum(1, _MAX_WRONG_SHARE * n_known)
    flags &= ~is_updating | (n_known - n_wrong >= _MIN_KEEPING)
    return flags


def _describe(trace: Trace, ops: CheckableOps, bounds: Bounds, index: int) -> Contradiction:
    position = int(bounds.positions[index])
    row = int(ops.outputs[position])
    inputs = [int(ops.first[position])]
    if ops.n_operands[position] > 1:
        inputs = sorted([*inputs, int(ops.second[position])])
    lower, upper = bounds.lower[index], bounds.upper[index]
    name = {"high": "max", "low": "min"}.get(bounds.statistic, bounds.statistic)
    if f"{lower:.5g}" == f"{upper:.5g}":
        expectation = f"the {name} must be {lower:.5g}"
    elif np.isfinite(lower) and np.isfinite(upper):
        expectation = f"the {name} must be between {lower:.6g} and {upper:.6g}"
    elif np.isfinite(lower):
        expectation = f"the {name} must be {lower:.6g} or more"
    else:
        expectation = f"the {name} must be {upper:.6g} or less"
    recorded = f"recorded with {format_statistics(trace, row)}"
    sources = [
        f"{trace.tensors['slot'].iat[tensor]} has {format_statistics(trace, tensor)}"
        for tensor in inputs
    ]
    computed = f"{expectation}: {', '.join(sources)}"
    return build_contradiction(trace, "result", row, recorded, computed)


def _compute_slack(numbers: RecordedNumbers, ops: CheckableOps, bounds: Bounds) -> Floats:
    """Return by how much a recorded statistic may be outside of its bounds."""
    positions = bounds.positions
    rows, first = ops.outputs[positions], ops.first[positions]
    unit = np.maximum(numbers.units[rows], numbers.units[first])
    relative = _FUNCTION_ERROR + _OUTPUT_UNITS * unit
    relative = relative + numbers.sum_errors[rows] + numbers.sum_errors[first]
    slack: Floats = relative * bounds.scale + numbers.floors[rows] + numbers.floors[first]
    return slack
