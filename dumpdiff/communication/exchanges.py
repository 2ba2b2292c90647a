"""Collectives and transfers of all ranks, joined: what each rank gives and gets in each of them.

A collective is the same on all its ranks if group and order in the group are the same. Names of
calls are never compared: ranks number them differently.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..model.arrays import Objects
from ..model.trace import Trace
from .collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    BROADCAST,
    RECV,
    SEND,
    TRANSFERS,
    list_collectives,
)
from .groups import Group, classify_groups
from .values import compute_value_keys

#: Names of the group of all ranks.
_WORLD_NAMES = frozenset(
    {"default", "hccl_world_group", "nccl_world_group", "mccl_world_group", "world"}
)
#: Kinds whose output is the same on all ranks of the group.
_SHARED_OUTPUTS = frozenset({ALL_REDUCE, ALL_GATHER, BROADCAST})
#: Share of the calls of a group name with equal outputs that makes two ranks one group. In one
#: group all of them are equal, and in two groups those of constants and parameters may be.
_MIN_EQUAL_SHARE = 0.75
#: Relative error of a mean of sums against the sum of means. Statistics have six or more digits.
_MEAN_TOLERANCE = 1e-3

#: One row for each rank of each exchange. ``exchange`` numbers them in the order of the first rank
#: that takes part; ``group`` is the position in ``Exchanges.groups``.
COLUMNS = (
    "exchange", "rank", "op", "kind", "group", "order", "reduction", "root", "peer",
    "asynchronous", "inputs", "outputs",
)  # fmt: skip


@dataclass(frozen=True)
class Exchanges:
    """The collectives and transfers of a run in one step."""

    #: has the columns of :data:`COLUMNS`; the rows of one exchange follow each other by position of
    #: the rank in the group. A transfer has two rows, send and recv.
    table: pd.DataFrame
    groups: tuple[Group, ...]
    ranks: tuple[int, ...]  #: ranks that were read
    #: what could not be joined, and why
    unjoined: tuple[str, ...] = ()

    def find(self, rank: int, op: int) -> pd.DataFrame:
        """Return all rows of the exchanges that an op of a rank takes part in."""
        table = self.table
        is_op = (table["rank"] == rank) & (table["op"] == op)
        return table[table["exchange"].isin(table.loc[is_op, "exchange"])]

    def list_groups(self, rank: int) -> list[Group]:
        """Return the groups that a rank belongs to."""
        return [group for group in self.groups if rank in group.members]


def join_collectives(traces: Mapping[int, Trace]) -> Exchanges:
    """Join the collectives and transfers of the traces of one step, given by rank.

    Members of a group are those that the dump records. Else they are the ranks that name the group,
    told apart by the values that its collectives give where several groups have one name or none.
    """
    ranks = tuple(sorted(traces))
    collectives = {rank: list_collectives(traces[rank]) for rank in ranks}
    keys = {rank: compute_value_keys(traces[rank]) for rank in ranks}
    unjoined: list[str] = []
    rows: list[dict[str, Any]] = []
    for rank in ranks:
        table = collectives[rank]
        columns = [table[name].tolist() for name in table.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(table.columns, values, strict=True))
            row["rank"] = rank
            if row["kind"] != BARRIER:
                rows.append(row)
    members_of = _find_members(rows, _list_known_ranks(rows, ranks), traces, keys)
    joined_rows, problems = _join_group_calls(rows, members_of, ranks)
    unjoined += problems
    transfer_rows, problems = _join_transfers(rows, members_of, ranks)
    unjoined += problems
    all_rows = joined_rows + transfer_rows
    groups = _number_groups(all_rows)
    _number_exchanges(all_rows)
    all_rows.sort(key=lambda row: row["exchange"])
    table = pd.DataFrame(all_rows, columns=list(COLUMNS))
    return Exchanges(table, classify_groups(groups, table, traces), ranks, tuple(unjoined))


def _list_known_ranks(rows: Sequence[dict[str, Any]], ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks of the run, as far as the dumps that were read name them."""
    known_ranks = set(ranks)
    for row in rows:
        known_ranks.update(row["members"] or ())
        known_ranks.update(rank for rank in (row["peer"],) if rank >= 0)
    return tuple(sorted(known_ranks))


def _find_members(
    rows: Sequence[dict[str, Any]],
    ranks: tuple[int, ...],
    traces: Mapping[int, Trace],
    keys: Mapping[int, Objects],
) -> dict[int, tuple[int, ...]]:
    """Return the members of the group of each row, by the row's position in ``rows``.

    A row whose members cannot be found is absent.
    """
    members_of: dict[int, tuple[int, ...]] = {}
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row["kind"] in TRANSFERS:
            continue
        if row["members"]:
            members_of[index] = row["members"]
        elif row["group"] in _WORLD_NAMES:
            members_of[index] = ranks
        else:
            by_name[row["group"]].append(index)
    for name, indices in by_name.items():
        if name:
            members_of |= _find_named_members(rows, indices, keys)
    if by_name[""]:
        known = set(members_of.values())
        members_of |= _find_unnamed_members(rows, by_name[""], traces, keys, known)
    return members_of


def _find_named_members(
    rows: Sequence[dict[str, Any]], indices: Sequence[int], keys: Mapping[int, Objects]
) -> dict[int, tuple[int, ...]]:
    """Return the members of groups of one name.

    They are all ranks that have the name, unless the outputs show that several groups have it.
    """
    calls: defaultdict[int, dict[tuple[str, int], dict[str, Any]]] = defaultdict(dict)
    for index in indices:
        row = rows[index]
        calls[row["rank"]][row["kind"], row["order"]] = row
    ranks = sorted(calls)
    partition = _partition(ranks, lambda a, b: _share_outputs(calls[a], calls[b], keys, a, b))
    group_of = {rank: group for group in partition for rank in group}
    return {index: group_of[rows[index]["rank"]] for index in indices}


def _share_outputs(
    calls: Mapping[tuple[str, int], dict[str, Any]],
    other_calls: Mapping[tuple[str, int], dict[str, Any]],
    keys: Mapping[int, Objects],
    rank: int,
    other_rank: int,
) -> bool:
    """Whether two ranks get the same from the calls of a group, or nothing tells them apart."""
    n_equal = n_comparable = 0
    for call, row in calls.items():
        other_row = other_calls.get(call)
        if other_row is None or call[0] not in _SHARED_OUTPUTS:
            continue
        output = _get_output_key(row, keys[rank])
        other_output = _get_output_key(other_row, keys[other_rank])
        if output is None or other_output is None:
            continue
        n_comparable += 1
        n_equal += output == other_output
    return n_comparable == 0 or n_equal >= _MIN_EQUAL_SHARE * n_comparable


def _get_output_key(row: Mapping[str, Any], keys: Objects) -> tuple[Any, ...] | None:
    outputs = [keys[tensor] for tensor in row["outputs"]]
    if not outputs or any(key is None for key in outputs):
        return None
    return tuple(outputs)


def _find_unnamed_members(
    rows: Sequence[dict[str, Any]],
    indices: Sequence[int],
    traces: Mapping[int, Trace],
    keys: Mapping[int, Objects],
    known_groups: set[tuple[int, ...]],
) -> dict[int, tuple[int, ...]]:
    """Return the members of the groups of collectives of which the dump records no group.

    The k-th calls of a kind of all ranks are one collective if they give equal outputs, and if the
    output of a sum is the sum of the inputs; several groups may make their calls side by side.
    Kinds with outputs of their own on each rank belong to the groups found so, if there is only one
    for each rank.
    """
    members_of: dict[int, tuple[int, ...]] = {}
    calls: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for index in indices:
        calls[rows[index]["kind"], rows[index]["order"]].append(index)
    groups = set(known_groups)
    undecided: list[int] = []
    for (kind, _), call_indices in calls.items():
        if kind not in _SHARED_OUTPUTS:
            undecided += call_indices
            continue
        classes: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for index in call_indices:
            row = rows[index]
            output = _get_output_key(row, keys[row["rank"]])
            if output is None:
                undecided.append(index)
            else:
                classes[output].append(index)
        for class_indices in classes.values():
            members = tuple(sorted(rows[index]["rank"] for index in class_indices))
            if len(members) == 1:
                undecided += class_indices
                continue
            if _is_reduction_of(class_indices, rows, traces):
                groups.add(members)
                members_of |= dict.fromkeys(class_indices, members)
            else:
                undecided += class_indices
    groups_of = Counter(rank for group in groups for rank in group)
    for index in undecided:
        rank = rows[index]["rank"]
        if groups_of[rank] == 1:
            members_of[index] = next(group for group in groups if rank in group)
    return members_of


def _is_reduction_of(
    indices: Sequence[int], rows: Sequence[dict[str, Any]], traces: Mapping[int, Trace]
) -> bool:
    """Whether the mean of the output can be that of the sum (mean) of the inputs."""
    row = rows[indices[0]]
    if row["kind"] != ALL_REDUCE or row["reduction"] not in ("", "sum", "mean"):
        return True
    input_means = []
    for index in indices:
        inputs = rows[index]["inputs"]
        if len(inputs) != 1:
            return True
        input_means.append(traces[rows[index]["rank"]].tensors["mean"].iat[inputs[0]])
    if len(row["outputs"]) != 1:
        return True
    tensors = traces[row["rank"]].tensors
    output_mean, output_norm = (
        float(tensors[name].iat[row["outputs"][0]]) for name in ("mean", "norm")
    )
    if not np.isfinite([output_mean, output_norm, *input_means]).all():
        return True
    scale = max(abs(output_mean), *map(abs, input_means), 1e-30)
    candidates = (sum(input_means), sum(input_means) / len(input_means))
    return any(abs(output_mean - mean) <= _MEAN_TOLERANCE * scale for mean in candidates)


def _partition(ranks: Sequence[int], is_equal: Any) -> list[tuple[int, ...]]:
    """Return ranks in groups of those that equal the first of the group."""
    groups: list[list[int]] = []
    for rank in ranks:
        for group in groups:
            if is_equal(group[0], rank):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return [tuple(group) for group in groups]


def _join_group_calls(
    rows: Sequence[dict[str, Any]],
    members_of: Mapping[int, tuple[int, ...]],
    ranks: tuple[int, ...],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of collectives with ``key``, the identity of the exchange; and problems."""
    joined: list[dict[str, Any]] = []
    n_unknown: Counter[str] = Counter()
    calls: defaultdict[tuple[str, tuple[int, ...], str], dict[int, list[dict[str, Any]]]]
    calls = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        if row["kind"] in TRANSFERS:
            continue
        if index in members_of:
            key = (row["kind"], members_of[index], row["group"])
            calls[key][row["rank"]].append(row)
        else:
            n_unknown[row["kind"]] += 1
    problems = [
        f"{count} {kind} of unknown groups: the dump records no group, and values do not tell"
        for kind, count in n_unknown.items()
    ]
    for (kind, members, name), calls_of in calls.items():
        missing_ranks = [rank for rank in members if rank not in ranks]
        if missing_ranks:
            listed_ranks = ", ".join(map(str, missing_ranks))
            problems.append(f"{kind} of group {_format_ranks(members)}: no dump of {listed_ranks}")
        counts = {rank: len(calls_of.get(rank, ())) for rank in members if rank in ranks}
        if len(set(counts.values())) > 1:
            listed_counts = ", ".join(f"{count} on rank {rank}" for rank, count in counts.items())
            problems.append(f"{kind} of group {_format_ranks(members)}: {listed_counts}")
        for rank, rank_rows in calls_of.items():
            for order, row in enumerate(rank_rows):
                root = row["peer"]
                if root < 0 <= row["group_peer"] < len(members):
                    root = members[row["group_peer"]]
                joined.append(
                    {
                        **row,
                        "rank": rank,
                        "order": order,
                        "root": root,
                        "peer": -1,
                        "is_recorded": bool(row["members"]),
                        "members": members,
                        "name": name,
                        "key": (kind, members, name, order),
                    }
                )
    return joined, problems


def _join_transfers(
    rows: Sequence[dict[str, Any]],
    members_of: Mapping[int, tuple[int, ...]],
    ranks: tuple[int, ...],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of sends and receives, each pair with one ``key``; and problems.

    The k-th send of rank a to rank b is the k-th receive of rank b from rank a.
    """
    joined: list[dict[str, Any]] = []
    orders: Counter[tuple[str, int, int]] = Counter()
    keys: defaultdict[tuple[int, int, int], set[str]] = defaultdict(set)
    n_unknown = 0
    world = set(ranks)
    for row in rows:
        if row["kind"] not in TRANSFERS:
            continue
        members = row["members"] or ranks
        peer = row["peer"]
        if peer < 0 <= row["group_peer"] < len(members):
            peer = members[row["group_peer"]]
        if peer < 0:
            n_unknown += 1
            continue
        ends = (row["rank"], peer) if row["kind"] == SEND else (peer, row["rank"])
        order = orders[(row["kind"], *ends)]
        orders[(row["kind"], *ends)] += 1
        keys[(*ends, order)].add(row["kind"])
        joined.append(
            {
                **row,
                "kind": row["kind"],
                "order": order,
                "root": -1,
                "peer": peer,
                "is_recorded": True,
                "members": ends,
                "name": "",
                "key": ("transfer", ends, order),
            }
        )
    problems = []
    if n_unknown:
        problems.append(f"{n_unknown} transfers: the other rank is not recorded")
    single_ends: Counter[tuple[int, int, str]] = Counter()
    for (sender, receiver, _), kinds in keys.items():
        if len(kinds) == 1 and {sender, receiver} <= world:
            single_ends[(sender, receiver, next(iter(kinds)))] += 1
    for (sender, receiver, kind), count in single_ends.items():
        missing_kind = RECV if kind == SEND else SEND
        problems.append(
            f"{count} {kind} of rank {sender} to rank {receiver} without a recorded {missing_kind}"
        )
    return joined, problems


def _number_groups(rows: Sequence[dict[str, Any]]) -> list[Group]:
    """Replace the group of each row by its number, and return the groups, of unknown kinds.

    Two groups of the same ranks with other names are two groups: each has an order of its own.
    """
    numbers: dict[Group, int] = {}
    for row in rows:
        is_transfer = row["kind"] in TRANSFERS
        members = tuple(sorted(row["members"])) if is_transfer else row["members"]
        group = Group(members, "", row["name"], is_transfer, row["is_recorded"])
        row["group"] = numbers.setdefault(group, len(numbers))
    return list(numbers)


def _number_exchanges(rows: list[dict[str, Any]]) -> None:
    """Add the number of the exchange, in the order of the first rank that takes part."""
    firsts: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in rows:
        place = (row["rank"], row["op"])
        firsts[row["key"]] = min(firsts.get(row["key"], place), place)
    order = sorted(firsts, key=lambda key: firsts[key])
    numbers = {key: number for number, key in enumerate(order)}
    for row in rows:
        row["exchange"] = numbers[row["key"]]


def _format_ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))
