"""Which call of each sibling rank corresponds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from parallel_runs import read_ranks

from dumpdiff.communication import find_stages, join_collectives, match_siblings, match_tensors
from dumpdiff.communication.exchanges import Exchanges
from dumpdiff.communication.groups import Group


def test_graphs_of_siblings_correspond_although_one_has_more_ops(
    dump: Callable[[str], Path],
) -> None:
    """Replicated weights enter the gradient norm on rank 0 only."""
    traces = read_ranks(dump("parallel_ms_tp2"))
    (siblings,) = match_siblings(traces, join_collectives(traces))
    assert siblings.ranks == (0, 1)
    pairs = siblings.ops[(siblings.ops >= 0).all(axis=1)]
    assert len(traces[0].ops) > len(traces[1].ops)
    assert len(pairs) >= len(traces[1].ops) - 1  # sums of other lengths do not correspond
    kinds = [traces[rank].ops["kind"].to_numpy()[pairs[:, rank]] for rank in (0, 1)]
    assert (kinds[0] == kinds[1]).all()
    rows = match_tensors(traces[0], pairs[:, 0], traces[1], pairs[:, 1])
    found = rows >= 0
    names = traces[0].tensors["parameter"].to_numpy()[found]
    assert (names == traces[1].tensors["parameter"].to_numpy()[rows[found]]).all()


def test_all_ranks_of_two_kinds_of_parallelism_are_siblings(dump: Callable[[str], Path]) -> None:
    traces = read_ranks(dump("parallel_pt_tp2_dp2"))
    (siblings,) = match_siblings(traces, join_collectives(traces))
    assert siblings.ranks == (0, 1, 2, 3)
    row = int(np.flatnonzero((siblings.ops >= 0).all(axis=1))[100])
    for position, rank in enumerate(siblings.ranks):
        op = int(siblings.ops[row, position])
        assert siblings.find_op(0, int(siblings.ops[row, 0]), rank) == op


def test_stages_of_a_pipeline_are_told_apart() -> None:
    """Ranks 0 and 1 are stage 0; a group of all ranks does not join the stages."""
    groups = (
        Group((0, 2), "pp", is_transfer=True),
        Group((1, 3), "pp", is_transfer=True),
        Group((0, 1), "tp"),
        Group((2, 3), "tp"),
        Group((0, 2), "pp"),
        Group((0, 1, 2, 3), "world"),
    )
    exchanges = Exchanges(join_collectives({}).table, groups, (0, 1, 2, 3))
    assert find_stages(exchanges) == [(0, 1), (2, 3)]
