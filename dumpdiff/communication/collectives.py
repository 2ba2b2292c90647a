"""The collectives and transfers that one rank takes part in, read from its trace."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from ..model.trace import COMMUNICATION, COMMUNICATION_COLUMNS, Trace

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
BROADCAST, REDUCE, GATHER, SCATTER = "broadcast", "reduce", "gather", "scatter"
ALL_TO_ALL, SEND, RECV, BARRIER = "all_to_all", "send", "recv", "barrier"
#: Kinds that move values between two ranks only.
TRANSFERS = frozenset({SEND, RECV})

#: One row per collective or transfer of a rank. ``inputs`` are the tensors that the rank gives,
#: ``outputs`` those that it gets, in the order of the group's ranks if there is one for each.
COLUMNS = (
    "op", "kind", "group", "members", "reduction", "peer", "group_peer", "asynchronous", "order",
    "inputs", "outputs",
)  # fmt: skip

#: Name of an operator in lower case without its framework, underscores and form -> kind.
_KINDS = {
    "allreduce": ALL_REDUCE,
    "allgather": ALL_GATHER,
    "allgatherintotensor": ALL_GATHER,
    "allgatherbase": ALL_GATHER,
    "hostallgather": ALL_GATHER,
    "reducescatter": REDUCE_SCATTER,
    "reducescattertensor": REDUCE_SCATTER,
    "reducescatterbase": REDUCE_SCATTER,
    "hostreducescatter": REDUCE_SCATTER,
    "broadcast": BROADCAST,
    "reduce": REDUCE,
    "gather": GATHER,
    "gatherintotensor": GATHER,
    "collectivegather": GATHER,
    "scatter": SCATTER,
    "scattertensor": SCATTER,
    "collectivescatter": SCATTER,
    "alltoall": ALL_TO_ALL,
    "alltoallsingle": ALL_TO_ALL,
    "alltoallv": ALL_TO_ALL,
    "alltoallvc": ALL_TO_ALL,
    "alltoallsinglewithoutputshape": ALL_TO_ALL,
    "alltoallwithoutputshape": ALL_TO_ALL,
    "neighborexchange": ALL_TO_ALL,
    "send": SEND,
    "isend": SEND,
    "recv": RECV,
    "irecv": RECV,
    "receive": RECV,
    "barrier": BARRIER,
}

#: Calls of ``torch.distributed`` take the tensor to fill as the first argument, and what is given
#: as the second one.
_OUTPUT_FIRST = frozenset({ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SCATTER})
#: Names of arguments that hold what a rank gives.
_INPUT_NAMES = frozenset({
    "tensor", "input", "input_tensor", "input_list", "input_tensor_list", "input_tensors",
    "scatter_list",
})  # fmt: skip
_OUTPUT_NAMES = frozenset({
    "tensor_list", "output_tensor", "output", "output_tensor_list", "output_tensors",
    "gather_list",
})  # fmt: skip
_CALL_NUMBER = re.compile(r"[._](\d+)(?:[._](?:forward|backward))?(?:#\d+)?$")


_Record: TypeAlias = dict[str, Any]


class _Slot(NamedTuple):
    tensor: int
    slot: str
    size: int
    is_trusted: bool


def list_collectives(trace: Trace) -> pd.DataFrame:
    """Return the collectives and transfers of a rank, with the columns of :data:`COLUMNS`.

    ``order`` counts those of one kind and group, and for transfers of one peer, from 0. Of an
    in-place collective that was recorded only after the call, only the output is known.
    """
    facts: defaultdict[int, list[_Record]] = defaultdict(list)
    columns = [trace.communications[name].tolist() for name in COMMUNICATION_COLUMNS]
    for values in zip(*columns, strict=True):
        record = dict(zip(COMMUNICATION_COLUMNS, values, strict=True))
        facts[record["op"]].append(record)
    ops = trace.ops
    rows: list[dict[str, Any]] = []
    communication_ops = np.flatnonzero((ops["phase"] == COMMUNICATION).to_numpy()).tolist()
    slots_of = _collect_slots(trace, communication_ops)
    names, kinds = ops["name"].tolist(), ops["kind"].tolist()
    for op in _order_calls(communication_ops, names):
        records = facts[op]
        if records and records[0]["transfer"]:
            rows += [_make_transfer(op, record, slots_of[op]) for record in records]
            continue
        kind = classify_kind(kinds[op])
        if kind == "":
            continue
        record = records[0] if records else {}
        rows.append(_make_collective(op, kinds[op], kind, record, slots_of[op]))
    _number_calls(rows)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def list_named_ranks(table: pd.DataFrame) -> frozenset[int]:
    """Return the ranks that the collectives and transfers of :func:`list_collectives` name."""
    named_ranks = set(table["peer"].tolist()) - {-1}
    for members in table["members"].dropna():
        named_ranks.update(members)
    return frozenset(named_ranks)


def classify_kind(kind: str) -> str:
    """Return the kind of a collective from the name of its operator, '' for other operators.

    >>> classify_kind("Distributed._all_gather_base"), classify_kind("AllReduce")
    ('all_gather', 'all_reduce')
    """
    name = kind.rpartition(".")[2].lower().replace("_", "")
    return _KINDS.get(name, "")


def _order_calls(ops: Sequence[int], names: Sequence[str]) -> list[int]:
    """Return the ops in the order in which they were called.

    An asynchronous call is recorded when it is complete, but numbered when it is made. So the calls
    of one API take the places that they have together, in the order of their numbers.
    """
    numbers: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for op in ops:
        match = _CALL_NUMBER.search(names[op])
        if match is not None and "/" not in names[op]:
            numbers[names[op][: match.start()]].append((int(match[1]), op))
    call_at = {op: op for op in ops}
    for numbered_ops in numbers.values():
        places = sorted(op for _, op in numbered_ops)
        for place, (_, op) in zip(places, sorted(numbered_ops), strict=True):
            call_at[place] = op
    return [call_at[place] for place in sorted(call_at)]


def _collect_slots(trace: Trace, ops: Sequence[int]) -> Mapping[int, list[_Slot]]:
    """Return the tensors of each op, without Python scalars."""
    tensors = trace.tensors
    is_scalar = (
        tensors["constant"].to_numpy() & tensors["dtype"].isin(["int", "float", "bool"]).to_numpy()
    )
    selected = np.flatnonzero(np.isin(tensors["op"].to_numpy(), ops) & ~is_scalar)
    slots: defaultdict[int, list[_Slot]] = defaultdict(list)
    columns = (tensors[name].to_numpy()[selected].tolist() for name in _SLOT_COLUMNS)
    for tensor, op, slot, size, trusted in zip(selected.tolist(), *columns, strict=True):
        slots[op].append(_Slot(tensor, slot, size, trusted))
    return slots


_SLOT_COLUMNS = ("op", "slot", "size", "trusted")


def _make_transfer(op: int, record: Mapping[str, Any], slots: Sequence[_Slot]) -> dict[str, Any]:
    """Return the row of one transfer of a batch."""
    side = "input" if record["transfer"] == SEND else "output"
    slot_name = record["slot"].replace("input", side, 1)
    tensors = tuple(slot.tensor for slot in slots if slot.slot == slot_name)
    is_send = record["transfer"] == SEND
    return {
        **_get_facts(record),
        "op": op,
        "kind": record["transfer"],
        "inputs": tensors if is_send else (),
        "outputs": () if is_send else tensors,
    }


def _make_collective(
    op: int, op_kind: str, kind: str, record: Mapping[str, Any], slots: Sequence[_Slot]
) -> dict[str, Any]:
    fills_first_argument = "istributed." in op_kind and kind in _OUTPUT_FIRST
    inputs = _find_inputs(kind, slots, fills_first_argument)
    outputs: tuple[int, ...] = ()
    if kind == GATHER and "istributed." in op_kind:
        outputs = _select(slots, "output.1") or _select(slots, "output.gather_list")
    elif kind != SEND:
        outputs = _find_outputs(slots)
    if inputs and not outputs and kind not in (SEND, BARRIER, GATHER):
        by_id = {slot.tensor: slot for slot in slots}
        if not all(by_id[tensor].is_trusted for tensor in inputs):
            inputs, outputs = (), inputs  # recorded after the call only
    if kind == RECV:
        inputs = ()
    return {**_get_facts(record), "op": op, "kind": kind, "inputs": inputs, "outputs": outputs}


def _find_inputs(kind: str, slots: Sequence[_Slot], fills_first_argument: bool) -> tuple[int, ...]:
    named = []
    for slot in slots:
        prefix, _, rest = slot.slot.partition(".")
        if prefix == "input" and rest.split(".")[0] in _INPUT_NAMES:
            named.append(slot.tensor)
    if named and kind != RECV:
        return tuple(named)
    return _select(slots, "input.1" if fills_first_argument else "input.0")


def _find_outputs(slots: Sequence[_Slot]) -> tuple[int, ...]:
    """Return the filled tensors. Outputs are the arguments after the call, or the results."""
    named = []
    for slot in slots:
        prefix, _, rest = slot.slot.partition(".")
        if prefix == "output" and rest.split(".")[0] in _OUTPUT_NAMES:
            named.append(slot.tensor)
    return tuple(named) or _select(slots, "output.0")


def _select(slots: Sequence[_Slot], name: str) -> tuple[int, ...]:
    """Return the tensor of a slot, or the elements of a list in it."""
    return tuple(
        slot.tensor for slot in slots if slot.slot == name or slot.slot.startswith(f"{name}.")
    )


def _get_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": record.get("group", ""),
        "members": record.get("members"),
        "reduction": record.get("reduction", ""),
        "peer": record.get("peer", -1),
        "group_peer": record.get("group_peer", -1),
        "asynchronous": bool(record.get("asynchronous", False)),
    }


def _number_calls(rows: list[dict[str, Any]]) -> None:
    """Add ``order`` to rows that are in the order of the calls of each kind."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        group = row["members"] or row["group"]
        key: tuple[Any, ...] = (row["kind"], group)
        if row["kind"] in TRANSFERS:
            key = (row["kind"], row["peer"], row["group_peer"])
        row["order"] = counts[key]
        counts[key] += 1
