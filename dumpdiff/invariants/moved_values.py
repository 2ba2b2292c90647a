"""Values that move between ranks unchanged: what each rank gets is what others gave."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..communication.collectives import GATHER, RECV, SEND
from ..model.arrays import AnyArray
from .exchange import (
    INCOMPLETE,
    NO_RECORD,
    Exchange,
    Member,
    Tally,
    add_violation,
    explain_missing_arrays,
    is_incomplete,
    load_all,
)
from .step import Step
from .violations import Violation

_NO_ROOT = "the root is not recorded"
_UNSPLIT = "the parts for each rank are not recorded"


def check_equal_outputs(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that all ranks get the same."""
    members = exchange.members
    keys = [
        tuple(step.keys[member.rank][tensor] for tensor in member.outputs) for member in members
    ]
    if not all(keys) or any(-1 in key for key in keys):
        tally.unchecked[NO_RECORD] += 1
        return
    tally.checked += 1
    if len(set(keys)) == 1:
        return
    most_common, count = Counter(keys).most_common(1)[0]
    wrong = [member for member, key in zip(members, keys, strict=True) if key != most_common]
    if count == 1:
        wrong = list(members)
    if any(is_incomplete(step, member) for member in wrong):
        tally.checked -= 1
        tally.unchecked[INCOMPLETE] += 1
        return
    right = members[keys.index(most_common)]
    add_violation(
        tally,
        step,
        exchange,
        "equal outputs",
        wrong,
        step.describe(wrong[-1].rank, wrong[-1].outputs[0]),
        step.describe(right.rank, right.outputs[0]),
        slot="output",
    )


def check_gather(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that every rank, or the root, gets what all ranks gave, one after the other."""
    members = exchange.members
    inputs = [load_all(step, member.rank, member.inputs) for member in members]
    if any(array is None for array in inputs):
        tally.unchecked[explain_missing_arrays(member.inputs for member in members)] += 1
        return
    expected = np.concatenate([array for array in inputs if array is not None])
    receivers = [
        (member, expected)
        for member in members
        if member.kind != GATHER or member.rank == member.root
    ]
    origin = "the ranks gave parts of {norm} together"
    _check_received(step, exchange, tally, "gathered", receivers, origin)


def check_scatter(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that every rank gets its part of what the root gave."""
    members = exchange.members
    root = next((member for member in members if member.rank == member.root), None)
    if root is None:
        tally.unchecked[_NO_ROOT] += 1
        return
    given = load_all(step, root.rank, root.inputs)
    if given is None:
        tally.unchecked[explain_missing_arrays([root.inputs])] += 1
        return
    parts = _split(step, root, given, root.inputs, "input", len(members))
    if parts is None:
        tally.unchecked[_UNSPLIT] += 1
        return
    receivers = list(zip(members, parts, strict=True))
    origin = f"rank {root.rank} gave {{norm}}"
    _check_received(step, exchange, tally, "scattered", receivers, origin)


def check_broadcast(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that every rank gets what the root gave."""
    members = exchange.members
    roots = [member for member in members if member.rank == member.root and member.inputs]
    if not roots:
        tally.unchecked[_NO_ROOT] += 1
        return
    root = roots[0]
    given = step.keys[root.rank][root.inputs[0]]
    for member in members:
        got = step.keys[member.rank][member.outputs[0]] if member.outputs else -1
        if given < 0 or got < 0:
            tally.unchecked[NO_RECORD] += 1
            continue
        if is_incomplete(step, member):
            tally.unchecked[INCOMPLETE] += 1
            continue
        tally.checked += 1
        if got != given:
            add_violation(
                tally,
                step,
                exchange,
                "broadcast",
                [member],
                step.describe(member.rank, member.outputs[0]),
                step.describe(root.rank, root.inputs[0]),
            )


def check_all_to_all(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that each rank gets from every other what that one gave to it."""
    members = exchange.members
    sent: dict[tuple[int, int], AnyArray] = {}
    received: dict[tuple[int, int], AnyArray] = {}
    n_members = len(members)
    for position, member in enumerate(members):
        input_array = load_all(step, member.rank, member.inputs)
        output_array = load_all(step, member.rank, member.outputs)
        if input_array is None or output_array is None:
            tally.unchecked[explain_missing_arrays([member.inputs, member.outputs])] += 1
            return
        given = _split(step, member, input_array, member.inputs, "input", n_members)
        got = _split(step, member, output_array, member.outputs, "output", n_members)
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
            add_violation(
                tally,
                step,
                exchange,
                "exchanged",
                [wrong],
                f"norm {got_norm:.9g} from rank {members[sender].rank} on rank {wrong.rank}",
                f"rank {members[sender].rank} gave norm {float(np.linalg.norm(part)):.9g}",
            )
            return


def check_transfer(step: Step, exchange: Exchange, tally: Tally) -> None:
    """Check that what is received is what was sent."""
    members = exchange.members
    senders = [member for member in members if member.kind == SEND and member.inputs]
    receivers = [member for member in members if member.kind == RECV and member.outputs]
    if not senders or not receivers:
        tally.unchecked["only one end is recorded"] += 1
        return
    sender, receiver = senders[0], receivers[0]
    given = step.keys[sender.rank][sender.inputs[0]]
    got = step.keys[receiver.rank][receiver.outputs[0]]
    if given < 0 or got < 0:
        tally.unchecked[NO_RECORD] += 1
        return
    if is_incomplete(step, receiver):
        tally.unchecked[INCOMPLETE] += 1
        return
    tally.checked += 1
    if given != got:
        op = step.traces[receiver.rank].ops.iloc[receiver.op]
        tally.violations.append(
            Violation(
                "received",
                step.number,
                (receiver.rank,),
                op["name"],
                "output.0",
                op["scope"],
                step.describe(receiver.rank, receiver.outputs[0]),
                step.describe(sender.rank, sender.inputs[0]) + " was sent",
                f"pp {sender.rank},{receiver.rank}",
            )
        )


def _check_received(
    step: Step,
    exchange: Exchange,
    tally: Tally,
    invariant: str,
    receivers: Sequence[tuple[Member, AnyArray]],
    origin: str,
) -> None:
    """Check that each member got its array; one violation names all that did not.

    ``origin`` says where the array comes from, with the norm of the array in place of ``{norm}``.
    """
    wrong: list[tuple[Member, AnyArray]] = []
    for member, expected in receivers:
        output = load_all(step, member.rank, member.outputs)
        if output is None or output.size != expected.size:
            tally.unchecked[NO_RECORD] += 1
        elif is_incomplete(step, member):
            tally.unchecked[INCOMPLETE] += 1
        else:
            tally.checked += 1
            if not _are_equal(output, expected):
                wrong.append((member, expected))
    if wrong:
        first, expected = wrong[0]
        add_violation(
            tally,
            step,
            exchange,
            invariant,
            [member for member, _ in wrong],
            step.describe(first.rank, first.outputs[0]),
            origin.format(norm=f"norm {float(np.linalg.norm(expected)):.9g}"),
        )


def _split(
    step: Step,
    member: Member,
    array: AnyArray,
    tensors: tuple[int, ...],
    side: str,
    n_members: int,
) -> list[AnyArray] | None:
    """Return the parts of a tensor for each rank, by the recorded sizes or in equal parts.

    None if these do not add up to the tensor.
    """
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


def _read_split_sizes(step: Step, member: Member, side: str) -> list[int] | None:
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


def _are_equal(array: AnyArray, other: AnyArray) -> bool:
    return array.size == other.size and bool(np.array_equal(array, other, equal_nan=True))
