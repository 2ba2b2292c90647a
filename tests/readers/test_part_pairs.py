"""All steps and ranks that two dumps have are compared; what is not read is said."""

from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.readers.part_pairs import PartPairs, pair_parts
from dumpdiff.readers.parts import Part


def list_parts(steps: range | tuple[int, ...], ranks: range | tuple[int, ...]) -> list[Part]:
    return [
        Part("msprobe", Path(f"step{step}/rank{rank}"), step=step, rank=rank)
        for step in steps
        for rank in ranks
    ]


def list_places(pairs: PartPairs) -> list[tuple[int | None, int | None]]:
    return [(pair.step, pair.rank) for pair in pairs.pairs]


def test_every_common_step_and_rank_is_a_pair():
    parts = list_parts((0, 1), (0, 1))

    pairs = pair_parts(parts, parts)

    assert list_places(pairs) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert pairs.unread == pairs.unpaired == ()


def test_the_selected_ones_are_pairs_and_the_others_are_said_to_be_unread():
    parts = list_parts(range(3), range(4))

    pairs = pair_parts(parts, parts, steps=(0, 2), ranks=(1,))

    assert list_places(pairs) == [(0, 1), (2, 1)]
    assert pairs.unread == (
        "step 1 of the target was not read",
        "ranks 0, 2 and 3 of the target were not read",
        "step 1 of the reference was not read",
        "ranks 0, 2 and 3 of the reference were not read",
    )
    assert pairs.unpaired == ()  # nobody asked for them


def test_a_step_of_one_side_is_not_read():
    pairs = pair_parts(list_parts(range(5), (0,)), list_parts((0, 1), (0,)))

    assert list_places(pairs) == [(0, 0), (1, 0)]
    assert pairs.unread == ("steps 2 to 4 of the target were not read",)


def test_a_rank_without_a_partner_is_no_agreement():
    pairs = pair_parts(list_parts((0,), range(3)), list_parts((0,), (0, 1)))

    assert list_places(pairs) == [(0, 0), (0, 1)]
    assert pairs.unpaired == ("the reference has no rank 2 of step 0",)


def test_two_single_ranks_are_compared_whatever_their_numbers_are():
    pairs = pair_parts(list_parts((0,), (0,)), list_parts((0,), (3,)))

    (pair,) = pairs.pairs
    assert (pair.target[0].rank, pair.reference[0].rank) == (0, 3)


def test_a_selected_rank_must_be_in_both_dumps():
    with pytest.raises(DumpError, match="rank 7 is in neither dump"):
        pair_parts(list_parts((0,), (0, 1)), list_parts((0,), (0, 1)), ranks=(0, 7))
