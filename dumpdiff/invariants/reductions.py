"""Sums over ranks: what each rank gets follows from what all ranks gave, and is added up once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ..communication.collectives import ALL_REDUCE, REDUCE, REDUCE_SCATTER
from ..model.arrays import AnyArray
from ..model.dtypes import get_unit_roundoff, is_floating
from .exchange import (
    INCOMPLETE,
    NO_RECORD,
    STATISTICS_ONLY,
    Exchange,
    Member,
    Tally,
    add_violation,
    explain_missing_arrays,
    is_incomplete,
    list_exchanges,
    load_all,
)
from .step import MIN_SIZE, Step
from .violations import InvariantCheck

#: Sums of statistics are formed from numbers of six or more digits.
_STATISTIC_TOLERANCE = 1e-5


def check_reduction(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that every receiver gets the sum, mean, maximum or minimum of what all ranks gave."""
    members = exchange.members
    receivers = [member for member in members if member.outputs]
    if members[0].kind == REDUCE:
        receivers = [member for member in receivers if member.rank == member.root]
    is_single = all(len(member.inputs) == 1 for member in members)
    if not is_single or not receivers or len(receivers[0].outputs) != 1:
        tally.unchecked[NO_RECORD] += 1
        return
    receiver = receivers[0]
    if is_incomplete(step, receiver):
        tally.unchecked[INCOMPLETE] += 1
        return
    arrays = [step.load(member.rank, member.inputs[0]) for member in members]
    output = step.load(receiver.rank, receiver.outputs[0])
    if output is None or any(array is None for array in arrays):
        _check_reduced_statistics(step, exchange, receiver, tally)
        return
    inputs = [array for array in arrays if array is not None]
    if any(array.size != output.size for array in inputs):
        tally.unchecked["inputs have other sizes than the output"] += 1
        return
    tally.checked += 1
    reductions = [members[0].reduction] if members[0].reduction else ["sum", "mean", "max", "min"]
    dtype = step.traces[receiver.rank].tensors["dtype"].iat[receiver.outputs[0]]
    errors = {name: _measure_reduction_error(name, inputs, output, dtype) for name in reductions}
    if min(errors.values()) <= 1:
        return
    name = min(errors, key=lambda name: errors[name])
    expected = _reduce(name, inputs)
    add_violation(
        tally,
        step,
        exchange,
        "reduction",
        members,
        step.describe(receiver.rank, receiver.outputs[0]),
        f"the {name} of the inputs has norm {float(np.linalg.norm(expected.ravel())):.9g}",
    )


def check_reduce_scatter(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that every rank gets its part of the sum of what all ranks gave."""
    members = exchange.members
    inputs = [load_all(step, member.rank, member.inputs) for member in members]
    arrays = [array for array in inputs if array is not None]
    if len(arrays) < len(members) or len({array.size for array in arrays}) != 1:
        tally.unchecked[explain_missing_arrays(member.inputs for member in members)] += 1
        return
    size = arrays[0].size // len(members)
    for position, member in enumerate(members):
        output = load_all(step, member.rank, member.outputs)
        if output is None or output.size != size:
            tally.unchecked[NO_RECORD] += 1
            continue
        parts = [array[position * size : (position + 1) * size] for array in arrays]
        dtype = step.traces[member.rank].tensors["dtype"].iat[member.outputs[0]]
        tally.checked += 1
        name = member.reduction or "sum"
        if _measure_reduction_error(name, parts, output, dtype) > 1:
            expected = _reduce(name, parts)
            add_violation(
                tally,
                step,
                exchange,
                "scattered",
                [member],
                step.describe(member.rank, member.outputs[0]),
                f"its part of the {name} has norm {float(np.linalg.norm(expected)):.9g}",
            )


def check_copies(step: Step) -> InvariantCheck:
    """Check that no sum adds copies: the output of an earlier sum of the same group.

    Its inputs are equal on all ranks, and have the value that the earlier sum gave.
    """
    tally = Tally()
    reduced: defaultdict[int, set[int]] = defaultdict(set)
    for exchange in list_exchanges(step):
        members = exchange.members
        is_sum = members[0].kind in (ALL_REDUCE, REDUCE_SCATTER)
        is_sum &= members[0].reduction in ("", "sum")
        if not is_sum or not all(len(member.inputs) == 1 for member in members):
            continue
        keys = {int(step.keys[member.rank][member.inputs[0]]) for member in members}
        is_informative = all(step.informative[member.rank][member.inputs[0]] for member in members)
        size = step.traces[members[0].rank].tensors["size"].iat[members[0].inputs[0]]
        if is_informative and size >= MIN_SIZE and -1 not in keys:
            tally.checked += 1
            if len(keys) == 1 and keys <= reduced[exchange.group]:
                copy = step.describe(members[0].rank, members[0].inputs[0])
                add_violation(
                    tally,
                    step,
                    exchange,
                    "reduced once",
                    members,
                    f"the sum adds copies of {copy}",
                    "an earlier sum of the same group gave that value",
                    slot="input.0",
                )
        for member in members:
            reduced[exchange.group].update(
                int(step.keys[member.rank][tensor]) for tensor in member.outputs
            )
    return InvariantCheck("reduced once", tally.checked, tuple(tally.violations))


def _check_reduced_statistics(
    step: Step, exchange: Exchange, receiver: Member, tally: Tally
) -> None:
    """Check by statistics that a tensor is the sum (mean) of others.

    Its mean is that of the sums; without means, no element and no norm is larger than the sum of
    the largest.
    """
    members = exchange.members
    name = members[0].reduction or "sum"
    inputs = [step.traces[member.rank].tensors.iloc[member.inputs[0]] for member in members]
    output = step.traces[receiver.rank].tensors.iloc[receiver.outputs[0]]
    sizes = {int(row["size"]) for row in (*inputs, output)}
    if name not in ("sum", "mean") or len(sizes) != 1:
        tally.unchecked[STATISTICS_ONLY] += 1
        return
    divisor = len(inputs) if name == "mean" else 1
    sums = {
        statistic: sum(float(row[statistic]) for row in inputs) / divisor
        for statistic in ("max", "min", "mean", "norm")
    }
    roundoff = get_unit_roundoff(output["dtype"]) if is_floating(output["dtype"]) else 0.0
    tolerance = 2 * len(members) * roundoff + _STATISTIC_TOLERANCE
    # the mean of n elements is at most the norm / sqrt(n); its own rounding is relative to that
    spread = (sums["norm"] * divisor + float(output["norm"])) / np.sqrt(max(output["size"], 1))
    extent = max(abs(float(row[name])) for row in (*inputs, output) for name in ("max", "min"))
    bounds = {
        "mean": abs(float(output["mean"]) - sums["mean"]) - tolerance * spread,
        "max": float(output["max"]) - sums["max"] - tolerance * extent * len(inputs),
        "min": sums["min"] - float(output["min"]) - tolerance * extent * len(inputs),
        "norm": float(output["norm"]) - sums["norm"] * (1 + tolerance),
    }
    excesses = {statistic: value for statistic, value in bounds.items() if np.isfinite(value)}
    if not excesses:
        tally.unchecked[NO_RECORD] += 1
        return
    tally.checked += 1
    for statistic, excess in excesses.items():
        if excess > 0:
            add_violation(
                tally,
                step,
                exchange,
                "reduction",
                members,
                f"{statistic} {float(output[statistic]):.9g} on rank {receiver.rank}",
                f"the {statistic}s of the inputs have the {name} {sums[statistic]:.9g}",
            )
            return


def _reduce(name: str, arrays: Sequence[AnyArray]) -> AnyArray:
    stacked = [array.reshape(-1).astype(np.float64) for array in arrays]
    total = stacked[0].copy()
    for array in stacked[1:]:
        if name == "max":
            np.maximum(total, array, out=total)
        elif name == "min":
            np.minimum(total, array, out=total)
        elif name == "product":
            total *= array
        else:
            total += array
    return total / len(arrays) if name == "mean" else total


def _measure_reduction_error(
    name: str, arrays: Sequence[AnyArray], output: AnyArray, dtype: str
) -> float:
    """Return the largest error in units of what rounding explains.

    The bound of a sum of n terms in any order is (n - 1) u sum |x| (Higham, section 4.2).
    """
    expected = _reduce(name, arrays)
    with np.errstate(invalid="ignore"):
        error = np.abs(expected - output.reshape(-1))
    error[~np.isfinite(expected)] = 0
    if name in ("max", "min"):
        bound = np.zeros_like(error)
    else:
        magnitude = _reduce("sum", [np.abs(array) for array in arrays])
        if name == "product":
            magnitude = np.abs(expected)
        roundoff = get_unit_roundoff(dtype) if is_floating(dtype) else 0.0
        bound = 2 * len(arrays) * roundoff * magnitude
    exceeding = error > bound
    if not exceeding.any():
        return 0.0
    smallest = np.finfo(np.float64).tiny
    return float(np.max(error[exceeding] / np.maximum(bound[exceeding], smallest)))
