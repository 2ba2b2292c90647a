"""Collectives and transfers: what each rank gets follows from what all ranks gave."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..communication.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    RECV,
    REDUCE,
    REDUCE_SCATTER,
    SEND,
)
from ..model.arrays import AnyArray
from ..model.dtypes import get_unit_roundoff, is_floating
from .step import MIN_SIZE, Step
from .violations import InvariantCheck, Violation

#: Kinds whose output is the same on all ranks.
_SHARED = frozenset({ALL_REDUCE, ALL_GATHER, BROADCAST})
_NO_RECORD = "an input or output is not recorded on every rank"
_STATISTICS_ONLY = "only statistics, which do not tell the order of elements"
_UNSPLIT = "the parts for each rank are not recorded"
#: Sums of statistics are formed from numbers of six or more digits.
_STATISTIC_TOLERANCE = 1e-5


@dataclass
class _Tally:
    """What is counted for one invariant."""

    checked: int = 0
    violations: list[Violation] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Member:
    """One rank in one exchange."""

    rank: int
    op: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    root: int
    is_asynchronous: bool
    reduction: str


def check_exchanges(step: Step) -> list[InvariantCheck]:
    """Check every collective and transfer whose ranks were all read."""
    tallies_by_group: defaultdict[int, defaultdict[str, _Tally]]
    tallies_by_group = defaultdict(lambda: defaultdict(_Tally))
    for members, group in _list_exchanges(step):
        first = members[0]
        tallies = tallies_by_group[group]
        if {member.kind for member in members} <= {SEND, RECV}:
            _check_transfer(step, members, tallies["received"])
            continue
        if len(members) < len(step.exchanges.groups[group].members):
            tallies["reduction"].unchecked["a rank of the group was not read"] += 1
            continue
        if first.kind in _SHARED:
            _check_equal_outputs(step, members, group, tallies["equal outputs"])
        if first.kind in (ALL_REDUCE, REDUCE):
            _check_reduction(step, members, group, tallies["reduction"])
        elif first.kind == ALL_GATHER:
            _check_gather(step, members, group, tallies["gathered"])
        elif first.kind == REDUCE_SCATTER:
            _check_reduce_scatter(step, members, group, tallies["scattered"])
        elif first.kind == BROADCAST:
            _check_broadcast(step, members, group, tallies["broadcast"])
        elif first.kind == ALL_TO_ALL:
            _check_all_to_all(step, members, group, tallies["exchanged"])
    checks = []
    for group, tallies in tallies_by_group.items():
        if not step.exchanges.groups[group].is_recorded:
            _discard_sums_of_others(tallies)
        for name, tally in tallies.items():
            unchecked = dict(tally.unchecked)
            checks.append(InvariantCheck(name, tally.checked, tuple(tally.violations), unchecked))
    return checks


#: Invariants that need all members of a group.
_OF_ALL_MEMBERS = ("reduction", "gathered", "scattered", "exchanged")


def _discard_sums_of_others(tallies: dict[str, _Tally]) -> None:
    """Discard what contradicts most sums of a group whose members are not recorded.

    Then other ranks take part, of which there is no dump.
    """
    for name in _OF_ALL_MEMBERS:
        tally = tallies.get(name)
        if tally is not None and 2 * len(tally.violations) > tally.checked:
            tally.unchecked["the group seems to have further ranks"] += tally.checked
            tally.checked = 0
            tally.violations.clear()


def _list_exchanges(step: Step) -> Iterator[tuple[list[_Member], int]]:
    """Yield the members of every exchange in the order of the group, and the group's number."""
    table = step.exchanges.table
    names = (
        "exchange", "group", "rank", "op", "kind", "inputs", "outputs", "root", "asynchronous",
        "reduction",
    )  # fmt: skip
    by_exchange: defaultdict[int, list[_Member]] = defaultdict(list)
    group_of: dict[int, int] = {}
    for exchange, group, *facts in zip(*(table[name].tolist() for name in names), strict=True):
        by_exchange[exchange].append(_Member(*facts))
        group_of[exchange] = group
    for exchange, members in by_exchange.items():
        order = step.exchanges.groups[group_of[exchange]].members
        yield sorted(members, key=lambda member: order.index(member.rank)), group_of[exchange]


def _check_equal_outputs(step: Step, members: Sequence[_Member], group: int, tally: _Tally) -> None:
    keys = [
        tuple(step.keys[member.rank][tensor] for tensor in member.outputs) for member in members
    ]
    if not all(keys) or any(-1 in key for key in keys):
        tally.unchecked[_NO_RECORD] += 1
        return
    tally.checked += 1
    if len(set(keys)) == 1:
        return
    most_common, count = Counter(keys).most_common(1)[0]
    wrong = [member for member, key in zip(members, keys, strict=True) if key != most_common]
    if count == 1:
        wrong = list(members)
    if any(_is_incomplete(step, member) for member in wrong):
        tally.checked -= 1
        tally.unchecked["asynchronous: recorded before it was complete"] += 1
        return
    right = members[keys.index(most_common)]
    tally.violations.append(
        _make_violation(
            step, "equal outputs", wrong, group, "output",
            step.describe(wrong[-1].rank, wrong[-1].outputs[0]),
            step.describe(right.rank, right.outputs[0]),
        )
    )  # fmt: skip


def _is_incomplete(step: Step, member: _Member) -> bool:
    """Whether an asynchronous call was recorded before its output was there."""
    if not member.is_asynchronous or not member.outputs:
        return False
    keys = step.keys[member.rank]
    op_rows = np.flatnonzero(
        (step.traces[member.rank].tensors["op"] == member.op).to_numpy()
        & (step.traces[member.rank].tensors["slot_kind"] == "input").to_numpy()
    )
    inputs = set(keys[op_rows].tolist())
    return any(keys[tensor] in inputs for tensor in member.outputs)


def _check_reduction(step: Step, members: Sequence[_Member], group: int, tally: _Tally) -> None:
    receivers = [member for member in members if member.outputs]
    if members[0].kind == REDUCE:
        receivers = [member for member in receivers if member.rank == member.root]
    is_single = all(len(member.inputs) == 1 for member in members)
    if not is_single or not receivers or len(receivers[0].outputs) != 1:
        tally.unchecked[_NO_RECORD] += 1
        return
    receiver = receivers[0]
    if _is_incomplete(step, receiver):
        tally.unchecked["asynchronous: recorded before it was complete"] += 1
        return
    arrays = [step.load(member.rank, member.inputs[0]) for member in members]
    output = step.load(receiver.rank, receiver.outputs[0])
    if output is None or any(array is None for array in arrays):
        _check_reduced_statistics(step, members, receiver, group, tally)
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
    tally.violations.append(
        _make_violation(
            step, "reduction", list(members), group, "output.0",
            step.describe(receiver.rank, receiver.outputs[0]),
            f"the {name} of the inputs has norm {float(np.linalg.norm(expected.ravel())):.9g}",
        )
    )  # fmt: skip


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


def _check_reduced_statistics(
    step: Step, members: Sequence[_Member], receiver: _Member, group: int, tally: _Tally
) -> None:
    """Check by statistics that a tensor is the sum (mean) of others.

    Its mean is that of the sums; without means, no element and no norm is larger than the sum of
    the largest.
    """
    name = members[0].reduction or "sum"
    inputs = [step.traces[member.rank].tensors.iloc[member.inputs[0]] for member in members]
    output = step.traces[receiver.rank].tensors.iloc[receiver.outputs[0]]
    sizes = {int(row["size"]) for row in (*inputs, output)}
    if name not in ("sum", "mean") or len(sizes) != 1:
        tally.unchecked[_STATISTICS_ONLY] += 1
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
        tally.unchecked[_NO_RECORD] += 1
        return
    tally.checked += 1
    for statistic, excess in excesses.items():
        if excess > 0:
            tally.violations.append(
                _make_violation(
                    step, "reduction", list(members), group, "output.0",
                    f"{statistic} {float(output[statistic]):.9g} on rank {receiver.rank}",
                    f"the {statistic}s of the inputs have the {name} {sums[statistic]:.9g}",
                )
            )  # fmt: skip
            return


def _check_gather(step: Step, members: Sequence[_Member], group: int, tally: _Tally) -> None:
    inputs = [_load_all(step, member.rank, member.inputs) for member in members]
    if any(array is None for array in inputs):
        tally.unchecked[_STATISTICS_ONLY if _has_tensors(members) else _NO_RECORD] += 1
        return
    expected = np.concatenate([array for array in inputs if array is not None])
    for member in members:
        output = _load_all(step, member.rank, member.outputs)
        if output is None or output.size != expected.size:
            tally.unchecked[_NO_RECORD] += 1
            continue
        tally.checked += 1
        if not _are_equal(output, expected) and not _is_incomplete(step, member):
            tally.violations.append(
                _make_violation(
                    step, "gathered", [member], group, "output.0",
                    step.describe(member.rank, member.outputs[0]),
                    f"the ranks gave parts of norm {float(np.linalg.norm(expected)):.9g} together",
                )
            )  # fmt: skip
            return


def _check_reduce_scatter(
    step: Step, members: Sequence[_Member], group: int, tally: _Tally
) -> None:
    inputs = [_load_all(step, member.rank, member.inputs) for member in members]
    arrays = [array for array in inputs if array is not None]
    if len(arrays) < len(members) or len({array.size for array in arrays}) != 1:
        tally.unchecked[_STATISTICS_ONLY if _has_tensors(members) else _NO_RECORD] += 1
        return
    size = arrays[0].size // len(members)
    for position, member in enumerate(members):
        output = _load_all(step, member.rank, member.outputs)
        if output is None or output.size != size:
            tally.unchecked[_NO_RECORD] += 1
            continue
        parts = [array[position * size : (position + 1) * size] for array in arrays]
        dtype = step.traces[member.rank].tensors["dtype"].iat[member.outputs[0]]
        tally.checked += 1
        name = member.reduction or "sum"
        if _measure_reduction_error(name, parts, output, dtype) > 1:
            expected = _reduce(name, parts)
            tally.violations.append(
                _make_violation(
                    step, "scattered", [member], group, "output.0",
                    step.describe(member.rank, member.outputs[0]),
                    f"its part of the {name} has norm {float(np.linalg.norm(expected)):.9g}",
                )
            )  # fmt: skip


def _check_broadcast(step: Step, members: Sequence[_Member], group: int, tally: _Tally) -> None:
    roots = [member for member in members if member.rank == member.root and member.inputs]
    if not roots:
        tally.unchecked["the root is not recorded"] += 1
        return
    root = roots[0]
    given = step.keys[root.rank][root.inputs[0]]
    for member in members:
        got = step.keys[member.rank][member.outputs[0]] if member.outputs else -1
        if given < 0 or got < 0:
            tally.unchecked[_NO_RECORD] += 1
            continue
        tally.checked += 1
        if got != given and not _is_incomplete(step, member):
            tally.violations.append(
                _make_violation(
                    step, "broadcast", [member], group, "output.0",
                    step.describe(member.rank, member.outputs[0]),
                    step.describe(root.rank, root.inputs[0]),
                )
            )  # fmt: skip


def _check_all_to_all(step: Step, members: Sequence[_Member], group: int, tally: _Tally) -> None:
    inputs = [_load_all(step, member.rank, member.inputs) for member in members]
    outputs = [_load_all(step, member.rank, member.outputs) for member in members]
    if any(array is None for array in (*inputs, *outputs)):
        tally.unchecked[_STATISTICS_ONLY if _has_tensors(members) else _NO_RECORD] += 1
        return
    sent: dict[tuple[int, int], AnyArray] = {}
    received: dict[tuple[int, int], AnyArray] = {}
    n_members = len(members)
    for position, member in enumerate(members):
        given = _split(step, member, inputs[position], member.inputs, "input", n_members)
        got = _split(step, member, outputs[position], member.outputs, "output", n_members)
        if given is None or got is None:
            tally.unchecked[_UNSPLIT] += 1
            return
        for other in range(n_members):
            sent[position, other] = given[other]
            received[other, position] = got[other]
    for (sender, receiver), part in sent.items():
        tally.checked += 1
        if not _are_equal(part, received[sender, receiver]):
            wrong = members[receiver]
            got_norm = float(np.linalg.norm(received[sender, receiver]))
            tally.violations.append(
                _make_violation(
                    step, "exchanged", [wrong], group, "output.0",
                    f"norm {got_norm:.9g} from rank {members[sender].rank} on rank {wrong.rank}",
                    f"rank {members[sender].rank} gave norm {float(np.linalg.norm(part)):.9g}",
                )
            )  # fmt: skip
            return


def _split(
    step: Step,
    member: _Member,
    array: AnyArray | None,
    tensors: tuple[int, ...],
    side: str,
    n_members: int,
) -> list[AnyArray] | None:
    """Return the parts of a tensor for each rank, by the recorded sizes or in equal parts."""
    if array is None:
        return None
    table = step.traces[member.rank].tensors
    if len(tensors) == n_members:
        sizes = table["size"].to_numpy()[list(tensors)].tolist()
    else:
        counts = _read_split_sizes(step, member, side)
        if counts is None:
            counts = [1] * n_members
        if len(counts) != n_members:
            return None
        n_rows = sum(counts)
        if n_rows == 0:
            return [array] * n_members if array.size == 0 else None
        if array.size % n_rows:
            return None
        sizes = [count * (array.size // n_rows) for count in counts]
    bounds = np.cumsum([0, *sizes])
    if bounds[-1] != array.size:
        return None
    return [array[start:end] for start, end in itertools.pairwise(bounds)]


def _read_split_sizes(step: Step, member: _Member, side: str) -> list[int] | None:
    """Return how many rows go to (come from) each rank, None if all parts are equal."""
    table = step.traces[member.rank].tensors
    rows = table[(table["op"] == member.op) & table["constant"]]
    position = "2" if side == "output" else "3"
    for name in (f"input.{side}_split_sizes.", f"input.{position}."):
        sizes = [
            int(value)
            for slot, value in zip(rows["slot"], rows["max"], strict=True)
            if slot.startswith(name)
        ]
        if sizes:
            return sizes
    return None


def _check_transfer(step: Step, members: Sequence[_Member], tally: _Tally) -> None:
    senders = [member for member in members if member.kind == SEND and member.inputs]
    receivers = [member for member in members if member.kind == RECV and member.outputs]
    if not senders or not receivers:
        tally.unchecked["only one end is recorded"] += 1
        return
    sender, receiver = senders[0], receivers[0]
    given = step.keys[sender.rank][sender.inputs[0]]
    got = step.keys[receiver.rank][receiver.outputs[0]]
    if given < 0 or got < 0:
        tally.unchecked[_NO_RECORD] += 1
        return
    if _is_incomplete(step, receiver):
        tally.unchecked["asynchronous: recorded before it was complete"] += 1
        return
    tally.checked += 1
    if given != got:
        op = step.traces[receiver.rank].ops.iloc[receiver.op]
        tally.violations.append(
            Violation(
                "received", step.number, (receiver.rank,), op["name"], "output.0", op["scope"],
                step.describe(receiver.rank, receiver.outputs[0]),
                step.describe(sender.rank, sender.inputs[0]) + " was sent",
                f"pp {sender.rank},{receiver.rank}",
            )
        )  # fmt: skip


def _load_all(step: Step, rank: int, tensors: tuple[int, ...]) -> AnyArray | None:
    """Return the elements of tensors one after the other, None if one has no file."""
    arrays = [step.load(rank, tensor) for tensor in tensors]
    if not arrays or any(array is None for array in arrays):
        return None
    joined: AnyArray = np.concatenate([array.reshape(-1) for array in arrays if array is not None])
    return joined


def _has_tensors(members: Sequence[_Member]) -> bool:
    return all(member.inputs and member.outputs for member in members)


def _are_equal(array: AnyArray, other: AnyArray) -> bool:
    return array.size == other.size and bool(np.array_equal(array, other, equal_nan=True))


def _make_violation(
    step: Step,
    invariant: str,
    members: Sequence[_Member],
    group: int,
    slot: str,
    recorded: str,
    expected: str,
) -> Violation:
    first = members[0]
    op: Any = step.traces[first.rank].ops.iloc[first.op]
    ranks = tuple(sorted(member.rank for member in members))
    group_text = str(step.exchanges.groups[group])
    return Violation(
        invariant, step.number, ranks, op["name"], slot, op["scope"], recorded, expected, group_text
    )


def check_copies(step: Step) -> InvariantCheck:
    """Check that no sum adds copies: the output of an earlier sum of the same group.

    Its inputs are equal on all ranks, and have the value that the earlier sum gave.
    """
    tally = _Tally()
    reduced: defaultdict[int, set[int]] = defaultdict(set)
    for members, group in _list_exchanges(step):
        is_sum = members[0].kind in (ALL_REDUCE, REDUCE_SCATTER)
        is_sum &= members[0].reduction in ("", "sum")
        if not is_sum or not all(len(member.inputs) == 1 for member in members):
            continue
        keys = {int(step.keys[member.rank][member.inputs[0]]) for member in members}
        is_informative = all(step.informative[member.rank][member.inputs[0]] for member in members)
        size = step.traces[members[0].rank].tensors["size"].iat[members[0].inputs[0]]
        if is_informative and size >= MIN_SIZE and -1 not in keys:
            tally.checked += 1
            if len(keys) == 1 and keys <= reduced[group]:
                copy = step.describe(members[0].rank, members[0].inputs[0])
                tally.violations.append(
                    _make_violation(
                        step, "reduced once", list(members), group, "input.0",
                        f"the sum adds copies of {copy}",
                        "an earlier sum of the same group gave that value",
                    )
                )  # fmt: skip
        for member in members:
            reduced[group].update(int(step.keys[member.rank][tensor]) for tensor in member.outputs)
    return InvariantCheck("reduced once", tally.checked, tuple(tally.violations))
