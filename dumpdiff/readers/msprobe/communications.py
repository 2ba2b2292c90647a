"""Read from an entry of msprobe's dump.json who exchanges what with whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...model.trace import COMMUNICATION, build_communication_table
from ..reductions import normalize_reduction

#: Group of a call that was given none: all ranks.
DEFAULT_GROUP = "default"

#: API -> position of the argument that is the root or the other end of a transfer.
_PEER_POSITIONS = {
    "send": 1, "recv": 1, "isend": 1, "irecv": 1, "broadcast": 1, "reduce": 1, "gather": 2,
    "scatter": 2,
}  # fmt: skip
_PEER_NAMES = ("src", "dst", "root")  #: keyword arguments: a rank of the whole run
_GROUP_PEER_NAMES = ("group_src", "group_dst")  #: keyword arguments: a position in the group
_ASYNCHRONOUS_NAMES = ("async_op", 2, 3)  #: arguments that hold the flag
_ASYNCHRONOUS_APIS = frozenset({"isend", "irecv"})

_Row = dict[str, Any]


def read_communications(
    ops: pd.DataFrame, entries: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Return the table of communications. ``entries`` has those of such ops by name."""
    rows: list[_Row] = []
    kinds, op_names = ops["kind"].tolist(), ops["name"].tolist()
    for op in np.flatnonzero(ops["phase"].to_numpy() == COMMUNICATION).tolist():
        api = kinds[op].rpartition(".")[2]
        transfers = list(_list_transfers(entries[op_names[op]]))
        if transfers:
            rows += [{"op": op, **transfer} for transfer in transfers]
        else:
            rows.append({"op": op, **_read_collective(api, entries[op_names[op]])})
    names = ("op", "slot", "transfer", "group", "members", "reduction", "peer", "group_peer")
    columns: dict[str, Any] = {
        name: [row.get(name, _DEFAULTS.get(name, "")) for row in rows]
        for name in (*names, "asynchronous")
    }
    return build_communication_table(columns)


_DEFAULTS: Mapping[str, Any] = {
    "members": None, "peer": -1, "group_peer": -1, "asynchronous": False, "group": DEFAULT_GROUP,
}  # fmt: skip


def _list_transfers(entry: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield the transfers of a batch of sends and receives (P2POp)."""
    arguments = _get_arguments(entry)
    for position, argument in arguments:
        if not isinstance(argument, list):
            continue
        for index, item in enumerate(argument):
            if isinstance(item, dict) and "peer" in item and "op" in item:
                is_send = "send" in str(item["op"])
                yield {
                    "slot": f"input.{position}.{index}",
                    "transfer": "send" if is_send else "recv",
                    "group": str(item.get("group_id") or DEFAULT_GROUP),
                    "peer": _to_rank(item["peer"]),
                    "asynchronous": True,
                }


def _read_collective(api: str, entry: Mapping[str, Any]) -> _Row:
    row: _Row = {"asynchronous": api in _ASYNCHRONOUS_APIS}
    for name, argument in _get_arguments(entry):
        if not isinstance(argument, dict):
            continue
        type_name, value = str(argument.get("type", "")), argument.get("value")
        if type_name.endswith("ProcessGroup"):
            members = argument.get("group_ranks")
            if isinstance(members, list) and all(type(rank) is int for rank in members):
                row["members"] = tuple(members)
            row["group"] = str(argument.get("group_id") or DEFAULT_GROUP)
        elif type_name.endswith("ReduceOp"):
            row["reduction"] = normalize_reduction(str(value))
        elif isinstance(value, bool):
            row["asynchronous"] |= value and name in _ASYNCHRONOUS_NAMES
        elif isinstance(value, str):
            row |= _read_text(name, value)
        elif isinstance(value, int):
            if name in _PEER_NAMES or name == _PEER_POSITIONS.get(api):
                row["peer"] = value
            elif name in _GROUP_PEER_NAMES:
                row["group_peer"] = value
    if "reduction" not in row and "reduce" in api:
        row["reduction"] = "sum"  # the default of every API
    return row


def _read_text(name: int | str, text: str) -> _Row:
    """Return the reduction or the name of a group, which MindSpore gives as text."""
    reduction = normalize_reduction(text)
    if reduction and name != "group":
        return {"reduction": reduction}
    return {"group": text}


def _get_arguments(entry: Mapping[str, Any]) -> Iterator[tuple[int | str, Any]]:
    """Yield (position or keyword, argument)."""
    positional = entry.get("input_args")
    if isinstance(positional, list):
        yield from enumerate(positional)
    named = entry.get("input_kwargs")
    if isinstance(named, dict):
        yield from named.items()


def _to_rank(value: Any) -> int:
    return value if type(value) is int else -1
