"""How two batches are related is named; what a difference means depends on where the batches were read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.batches import Batch, DataComparison, compare
from dumpdiff.batches.relation import relate_tokens

TEXT = np.random.default_rng(5).integers(1, 900, (6, 25))


def batch(text: np.ndarray = TEXT, kind: Any = "dump", **changes: Any) -> Batch:
    return Batch("x", kind, "made here", {"tokens": text[:, :-1], "labels": text[:, 1:]}, **changes)


def with_arrays(of: Batch, **arrays: np.ndarray) -> Batch:
    return replace(of, arrays={**of.arrays, **arrays})


def both(comparison: DataComparison) -> dict[str, tuple[str, str]]:
    return {
        finding.name: (finding.state, finding.summary)
        for finding in comparison.findings
        if not finding.side
    }


def test_the_same_batch_agrees_bit_for_bit() -> None:
    comparison = compare(batch(), batch())
    assert comparison.verdict == "agree"
    assert comparison.to_stage().headline == "token ids: the same 6 samples of 24 tokens, bit for bit"


def test_ids_that_an_operator_reads_flat_are_the_same_ids() -> None:
    flat = Batch(
        "x",
        "dump",
        "made here",
        {name: array.reshape(1, -1) for name, array in batch().arrays.items()},
    )
    assert compare(flat, batch()).verdict == compare(batch(), flat).verdict == "agree"


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        (
            TEXT[[2, 0, 1, 3, 5, 4]],
            "order",
            "the same 6 samples in another order: 2, 0, 1, 3, 5, 4",
        ),
        (
            np.random.default_rng(6).integers(1, 900, (6, 25)),
            "other",
            "another batch: 0 % of the tokens are equal",
        ),
        (
            TEXT[:4],
            "part",
            "the 4 samples of the target are numbers 0, 1, 2, 3 of the reference's 6",
        ),
        (np.roll(TEXT, 1, axis=0)[:, ::-1], "other", "another batch"),
        (
            TEXT[:, :13],
            "longer",
            "the same samples, 24 tokens against 12: in the reference 12 more behind them",
        ),
        (
            np.pad(TEXT[:, :-1], ((0, 0), (0, 9))),
            "longer",
            "32 tokens against 24: in the target padded with 0 behind them",
        ),
        (np.pad(TEXT, ((0, 0), (8, 0))), "longer", "in the target padded with 0 before them"),
        (
            np.concatenate([TEXT[:4], TEXT[:3] + 1]),
            "other",
            "7 samples against 6, 4 of them in both",
        ),
        (TEXT[:3, :20], "other", "other shapes: 3 samples of 19 tokens against 6 of 24"),
    ],
)
def test_a_relation_is_named(target: np.ndarray, kind: str, said: str) -> None:
    comparison = compare(batch(target), batch())
    assert comparison.relation is not None
    assert comparison.relation.kind == kind
    assert said in comparison.to_stage().headline
    assert comparison.verdict == "differ"


def test_a_batch_that_begins_later_in_the_same_text_is_known_by_its_offset() -> None:
    text = np.random.default_rng(7).integers(1, 900, (4, 40))
    relation = relate_tokens(text[:, 3:27], text[:, :24])
    assert (relation.kind, relation.summary) == (
        "offset",
        "the target's samples begin 3 tokens after the reference's",
    )
    assert (
        relate_tokens(text[:, :24], text[:, 3:27]).summary
        == "the reference's samples begin 3 tokens after the target's"
    )
    uneven = np.stack([text[i, i : i + 24] for i in range(4)])
    assert (
        relate_tokens(uneven, text[:, :24]).summary
        == "the target's samples begin 0 to 3 tokens after the reference's"
    )


def test_a_few_other_tokens_are_counted_and_the_first_is_shown() -> None:
    wrong = TEXT.copy()
    wrong[2, 5], wrong[4, 7] = 901, 902
    comparison = compare(batch(wrong), batch())
    assert comparison.relation is not None
    assert comparison.relation.first_difference == (2, 5)
    assert both(comparison)["token ids"] == (
        "differ",
        f"2 of 144 tokens differ, in 2 of 6 samples, first at sample 2, place 5: 901 against {TEXT[2, 5]}",
    )


def test_one_token_more_is_how_a_model_gets_inputs_and_labels_in_one_row() -> None:
    row = Batch("x", "dump", "made here", {"tokens": TEXT})
    comparison = compare(row, batch(kind="dataset"))
    assert (comparison.verdict, comparison.missing) == (
        "agree",
        ("labels: not found in the target",),
    )


def test_labels_are_compared_in_the_order_of_the_samples() -> None:
    order = [2, 0, 1, 3, 5, 4]
    assert both(compare(batch(TEXT[order]), batch()))["labels"] == ("agree", "equal")


def test_samples_on_other_ranks_are_named() -> None:
    ranks = np.array([0, 0, 1, 1, 2, 2])
    comparison = compare(batch(ranks=np.array([0, 1, 2, 0, 1, 2])), batch(ranks=ranks))
    assert both(comparison)["ranks"] == (
        "differ",
        "4 of 6 samples go to another rank, first sample 1: rank 1 against rank 0; the mean loss of the step is the"
        " same",
    )


def test_loaders_that_deal_out_one_batch_in_two_ways_lose_nothing_but_the_order() -> None:
    ranks = np.array([0, 0, 1, 1, 2, 2])
    comparison = compare(
        batch(kind="dataset", ranks=np.arange(6) % 3), batch(kind="dataset", ranks=ranks)
    )
    assert comparison.verdict == "agree"
    assert "1 to look at: ranks: 4 of 6 samples go to another rank" in comparison.to_stage().headline


def test_dumps_of_all_ranks_are_the_dataset_by_ranks() -> None:
    order = [0, 3, 1, 4, 2, 5]
    dumped = batch(
        TEXT[order], ranks=np.array([0, 0, 2, 2, 4, 4])
    )  # of six devices, two for each sample
    comparison = compare(dumped, batch(kind="dataset", ranks=np.arange(6) % 3))
    assert (
        comparison.to_stage().headline == "token ids: the same 6 samples, dealt out to the same ranks"
    )
    assert both(comparison)["ranks"] == ("agree", "every sample goes to the same rank")


def test_the_dump_of_one_rank_is_a_part_of_the_global_batch() -> None:
    whole = batch(kind="dataset", ranks=np.array([0, 0, 1, 1, 2, 2]))
    own = compare(batch(TEXT[2:4]), whole)
    assert own.verdict == "agree"
    assert own.to_stage().headline.endswith("are numbers 2, 3 of the reference's 6: those of rank 1")
    mixed = compare(batch(TEXT[1:3]), whole)
    assert mixed.verdict == "differ"
    assert mixed.to_stage().headline.endswith("where they go to ranks 0, 1")


@pytest.mark.parametrize(
    ("shift", "ahead"),
    [(0, "back by 1 (0 ahead"), (2, "on by 1 (2 ahead"), (3, "on by 2 (3 ahead")],
)
def test_moved_labels_differ_in_dumps_and_cannot_be_told_in_files(shift: int, ahead: str) -> None:
    text = np.random.default_rng(8).integers(1, 900, (6, 30))
    right = Batch("x", "dump", "", {"tokens": text[:, :24], "labels": text[:, 1:25]})
    wrong = with_arrays(right, labels=text[:, shift : 24 + shift])
    comparison = compare(wrong, right)
    assert both(comparison)["labels"][0] == "differ"
    assert ahead in both(comparison)["labels"][1]
    assert compare(replace(wrong, kind="file"), right).verdict == "inconclusive"


def test_labels_that_a_loss_leaves_the_last_token_out_of_are_equal() -> None:
    shorter = with_arrays(batch(), labels=batch().arrays["labels"][:, :-1])
    assert both(compare(shorter, batch()))["labels"] == ("agree", "equal")


def test_labels_that_one_side_ignores_differ_unless_the_other_masks_them() -> None:
    ignored = batch().arrays["labels"].copy()
    ignored[:, :5] = -100
    target = with_arrays(batch(), labels=ignored)
    assert both(compare(target, batch()))["labels"] == (
        "differ",
        "equal, but 30 are ignored (negative) on one side only",
    )
    masked = with_arrays(batch(), loss_mask=(ignored >= 0).astype(float))
    assert both(compare(target, masked))["labels"] == ("agree", "equal")


def test_masks_and_positions_differ_at_a_place() -> None:
    ones, places = np.ones((6, 24)), np.tile(np.arange(24), (6, 1))
    mask = ones.copy()
    mask[1, 3] = 0
    target = with_arrays(batch(), loss_mask=mask, positions=places + 1)
    found = both(compare(target, with_arrays(batch(), loss_mask=ones, positions=places)))
    assert found["loss mask"] == (
        "differ",
        "143 tokens count against 144, first at sample 1, place 3",
    )
    assert found["positions"] == ("differ", "the target's are higher by 1")


def test_what_one_side_alone_knows_is_said() -> None:
    target = with_arrays(batch(), positions=np.tile(np.arange(24), (6, 1)))
    comparison = compare(target, Batch("x", "dump", "", {"tokens": TEXT[:, :-1]}))
    assert comparison.missing == (
        "labels: not found in the reference",
        "positions: known of the target alone",
    )
    assert comparison.verdict == "agree"


@given(order=st.permutations(range(6)))
def test_any_order_is_found(order: list[int]) -> None:
    relation = relate_tokens(TEXT[order], TEXT)
    assert list(relation.reference_samples) == order
    assert relation.kind == ("same" if order == list(range(6)) else "order")
