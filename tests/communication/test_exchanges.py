"""Collectives of real runs, joined over their ranks by group and order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from parallel_runs import read_ranks

from dumpdiff.communication import Exchanges, join_collectives, list_collectives
from dumpdiff.model.trace import Trace


@pytest.fixture(scope="module")
def collectives(dump: Callable[[str], Path]) -> dict[int, Trace]:
    return read_ranks(dump("collectives"))


@pytest.fixture(scope="module")
def exchanges(collectives: dict[int, Trace]) -> Exchanges:
    return join_collectives(collectives)


def test_every_collective_of_a_rank_with_its_group_and_reduction(
    collectives: dict[int, Trace],
) -> None:
    table = list_collectives(collectives[0])
    facts = list(zip(table["kind"], table["members"], table["reduction"], strict=True))
    assert facts == [
        ("all_reduce", None, "sum"),  # of the default group
        ("all_reduce", (0, 1), "max"),
        ("all_reduce", (0, 2), "sum"),
        ("all_gather", (0, 1), ""),
        ("all_gather", (0, 1), ""),
        ("reduce_scatter", (0, 1), "sum"),
        ("all_to_all", (0, 1), ""),
        ("reduce", None, "sum"),
        ("send", None, ""),
        ("send", None, ""),
        ("recv", None, ""),
        ("scatter", None, ""),
        ("gather", None, ""),
    ]
    asynchronous_calls = table.index[table["asynchronous"]].tolist()
    assert asynchronous_calls == [2, 9, 10]


def test_what_a_rank_gives_and_gets(collectives: dict[int, Trace]) -> None:
    trace = collectives[0]
    table = list_collectives(trace)
    shapes = {
        (kind, order): (
            [trace.tensors["shape"].iat[tensor] for tensor in inputs],
            [trace.tensors["shape"].iat[tensor] for tensor in outputs],
        )
        for kind, order, inputs, outputs in zip(
            table["kind"], table["order"], table["inputs"], table["outputs"], strict=True
        )
    }
    assert shapes["all_gather", 0] == ([(3, 4)], [(3, 4), (3, 4)])  # a list of tensors is filled
    assert shapes["all_gather", 1] == ([(3, 4)], [(6, 4)])  # one tensor is filled
    assert shapes["reduce_scatter", 0] == ([(8, 4)], [(4, 4)])
    assert shapes["all_to_all", 0] == ([(3, 2)], [(4, 2)])
    assert shapes["send", 0] == ([(5,)], [])
    assert shapes["recv", 0] == ([], [(2,)])


def test_groups_are_those_of_the_program(exchanges: Exchanges) -> None:
    members = [(group.members, group.is_transfer) for group in exchanges.groups]
    assert members == [
        ((0, 1, 2, 3), False),
        ((0, 1), False),
        ((0, 2), False),
        ((1, 3), False),
        ((2, 3), False),
        ((0, 2), True),
        ((1, 3), True),
    ]
    assert exchanges.unjoined == ()


def test_a_send_has_its_receive(exchanges: Exchanges) -> None:
    table = exchanges.table
    transfers = table[table["kind"].isin(["send", "recv"])]
    ends = [
        tuple(zip(rows["kind"], rows["rank"], strict=True))
        for _, rows in transfers.groupby("exchange")
    ]
    assert ends == [
        (("send", 0), ("recv", 2)),
        (("send", 0), ("recv", 2)),
        (("recv", 0), ("send", 2)),
        (("send", 1), ("recv", 3)),
    ]


def test_the_group_of_a_compiled_graph_is_its_name(dump: Callable[[str], Path]) -> None:
    exchanges = join_collectives(read_ranks(dump("parallel_ms_tp2")))
    group = exchanges.groups[0]
    assert (group.members, group.kind) == ((0, 1), "tp")
    assert group.name
    assert set(exchanges.table["reduction"]) == {"sum"}
    counts = exchanges.table.groupby("exchange")["rank"].apply(tuple)
    assert set(counts) == {(0, 1)}


def test_two_kinds_of_parallelism_have_groups_of_their_own(dump: Callable[[str], Path]) -> None:
    exchanges = join_collectives(read_ranks(dump("parallel_pt_tp2_dp2")))
    groups = {(group.members, group.kind) for group in exchanges.groups}
    assert groups == {((0, 1), "tp"), ((2, 3), "tp"), ((0, 2), "dp"), ((1, 3), "dp")}


def test_without_recorded_groups_equal_values_tell(dump: Callable[[str], Path]) -> None:
    exchanges = join_collectives(read_ranks(dump("v6.0_dist")))
    assert [(group.members, group.kind) for group in exchanges.groups] == [((0, 1), "dp")]
    kinds = exchanges.table.groupby("exchange")["kind"].first().tolist()
    assert kinds == ["all_reduce", "all_reduce", "all_gather", "broadcast", "all_to_all"]


def test_a_rank_that_was_not_read_is_said(collectives: dict[int, Trace]) -> None:
    exchanges = join_collectives({rank: collectives[rank] for rank in (0, 2)})
    assert "all_reduce of group 0,1: no dump of 1" in exchanges.unjoined
    assert "1 recv of rank 1 to rank 3 without a recorded send" not in exchanges.unjoined
