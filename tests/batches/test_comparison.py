"""The relation of two batches; its meaning depends on the sources of the batches."""

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


def make_batch(text: np.ndarray = TEXT, kind: Any = "dump", **changes: Any) -> Batch:
    return Batch("x", kind, "test", {"tokens": text[:, :-1], "labels": text[:, 1:]}, **changes)


def replace_arrays(batch: Batch, **arrays: np.ndarray) -> Batch:
    return replace(batch, arrays={**batch.arrays, **arrays})


def collect_common_findings(comparison: DataComparison) -> dict[str, tuple[str, str]]:
    common_findings = [finding for finding in comparison.findings if not finding.side]
    return {finding.name: (finding.state, finding.summary) for finding in common_findings}


def test_a_batch_agrees_with_itself_bit_for_bit() -> None:
    comparison = compare(make_batch(), make_batch())
    assert comparison.verdict == "agree"
    headline = comparison.to_stage().headline
    assert headline == "token ids: the same 6 samples of 24 tokens, bit for bit"


def test_flat_ids_are_compared_in_the_shape_of_the_other_side() -> None:
    flat_arrays = {name: array.reshape(1, -1) for name, array in make_batch().arrays.items()}
    flat = Batch("x", "dump", "test", flat_arrays)
    assert compare(flat, make_batch()).verdict == compare(make_batch(), flat).verdict == "agree"


def test_all_samples_of_a_flat_row_go_to_its_rank() -> None:
    flat_arrays = {name: array.reshape(1, -1) for name, array in make_batch().arrays.items()}
    flat = Batch("x", "dump", "test", flat_arrays, ranks=np.array([3]))
    one_rank = make_batch(ranks=np.zeros(6, dtype=int))
    assert compare(flat, one_rank).verdict == compare(one_rank, flat).verdict == "agree"
    two_ranks = make_batch(ranks=np.array([0, 0, 0, 1, 1, 1]))
    for comparison in (compare(flat, two_ranks), compare(two_ranks, flat)):
        state, summary = collect_common_findings(comparison)["ranks"]
        assert state == "differ"
        assert summary.startswith("3 of 6 samples go to a different rank, first sample 3")


@pytest.mark.parametrize(
    ("target", "kind", "summary"),
    [
        (
            TEXT[[2, 0, 1, 3, 5, 4]],
            "reordered",
            "the same 6 samples in another order: 2, 0, 1, 3, 5, 4",
        ),
        (
            np.random.default_rng(6).integers(1, 900, (6, 25)),
            "different",
            "another batch: 0 % of the tokens are equal",
        ),
        (
            TEXT[:4],
            "subset",
            "the 4 samples of the target are numbers 0, 1, 2, 3 of the reference's 6",
        ),
        (np.roll(TEXT, 1, axis=0)[:, ::-1], "different", "another batch"),
        (
            TEXT[:, :13],
            "longer",
            "the same samples, 24 tokens against 12: in the reference 12 more after them",
        ),
        (
            np.pad(TEXT[:, :-1], ((0, 0), (0, 9))),
            "longer",
            "32 tokens against 24: in the target padded with 0 after them",
        ),
        (np.pad(TEXT, ((0, 0), (8, 0))), "longer", "in the target padded with 0 before them"),
        (
            np.concatenate([TEXT[:4], TEXT[:3] + 1]),
            "different",
            "7 samples against 6, 4 of them in both",
        ),
        (TEXT[:3, :20], "different", "different shapes: 3 samples of 19 tokens against 6 of 24"),
    ],
)
def test_the_relation_of_tokens_is_recognized(target: np.ndarray, kind: str, summary: str) -> None:
    comparison = compare(make_batch(target), make_batch())
    assert comparison.relation is not None
    assert comparison.relation.kind == kind
    assert summary in comparison.to_stage().headline
    assert comparison.verdict == "differ"


def test_the_offset_of_batches_of_the_same_text_is_found() -> None:
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


def test_differing_tokens_are_counted_and_the_first_is_shown() -> None:
    changed = TEXT.copy()
    changed[2, 5], changed[4, 7] = 901, 902
    comparison = compare(make_batch(changed), make_batch())
    assert comparison.relation is not None
    assert comparison.relation.first_difference == (2, 5)
    assert collect_common_findings(comparison)["token ids"] == (
        "differ",
        "2 of 144 tokens differ, in 2 of 6 samples, first at sample 2, position 5: 901 against"
        f" {TEXT[2, 5]}",
    )


def test_a_row_with_one_more_token_for_the_labels_agrees() -> None:
    row = Batch("x", "dump", "test", {"tokens": TEXT})
    comparison = compare(row, make_batch(kind="dataset"))
    assert (comparison.verdict, comparison.missing) == (
        "agree",
        ("labels: not found in the target",),
    )


def test_labels_are_compared_in_the_order_of_the_samples() -> None:
    order = [2, 0, 1, 3, 5, 4]
    assert collect_common_findings(compare(make_batch(TEXT[order]), make_batch()))["labels"] == (
        "agree",
        "equal",
    )


def test_samples_on_different_ranks_are_counted() -> None:
    ranks = np.array([0, 0, 1, 1, 2, 2])
    comparison = compare(make_batch(ranks=np.array([0, 1, 2, 0, 1, 2])), make_batch(ranks=ranks))
    assert collect_common_findings(comparison)["ranks"] == (
        "differ",
        "4 of 6 samples go to a different rank, first sample 1: rank 1 against rank 0; the mean"
        " loss of the step is the same",
    )


def test_another_distribution_of_a_dataset_is_only_a_warning() -> None:
    ranks = np.array([0, 0, 1, 1, 2, 2])
    comparison = compare(
        make_batch(kind="dataset", ranks=np.arange(6) % 3), make_batch(kind="dataset", ranks=ranks)
    )
    assert comparison.verdict == "agree"
    assert (
        "1 to look at: ranks: 4 of 6 samples go to a different rank"
        in comparison.to_stage().headline
    )


def test_dumps_of_all_ranks_agree_with_the_dataset() -> None:
    order = [0, 3, 1, 4, 2, 5]
    # Ranks of six devices, two for each sample.
    dumped = make_batch(TEXT[order], ranks=np.array([0, 0, 2, 2, 4, 4]))
    comparison = compare(dumped, make_batch(kind="dataset", ranks=np.arange(6) % 3))
    assert (
        comparison.to_stage().headline
        == "token ids: the same 6 samples, distributed to the same ranks"
    )
    assert collect_common_findings(comparison)["ranks"] == (
        "agree",
        "every sample goes to the same rank",
    )


def test_the_dump_of_one_rank_agrees_with_its_part_of_the_global_batch() -> None:
    global_batch = make_batch(kind="dataset", ranks=np.array([0, 0, 1, 1, 2, 2]))
    one_rank = compare(make_batch(TEXT[2:4]), global_batch)
    assert one_rank.verdict == "agree"
    assert one_rank.to_stage().headline.endswith(
        "are numbers 2, 3 of the reference's 6: those of rank 1"
    )
    two_ranks = compare(make_batch(TEXT[1:3]), global_batch)
    assert two_ranks.verdict == "differ"
    assert two_ranks.to_stage().headline.endswith("where they go to ranks 0, 1")


@pytest.mark.parametrize(
    ("shift", "ahead"),
    [(0, "backward by 1 (0 ahead"), (2, "forward by 1 (2 ahead"), (3, "forward by 2 (3 ahead")],
)
def test_shifted_labels_differ_in_dumps_and_are_inconclusive_in_files(
    shift: int, ahead: str
) -> None:
    text = np.random.default_rng(8).integers(1, 900, (6, 30))
    reference = Batch("x", "dump", "", {"tokens": text[:, :24], "labels": text[:, 1:25]})
    target = replace_arrays(reference, labels=text[:, shift : 24 + shift])
    comparison = compare(target, reference)
    assert collect_common_findings(comparison)["labels"][0] == "differ"
    assert ahead in collect_common_findings(comparison)["labels"][1]
    assert compare(replace(target, kind="file"), reference).verdict == "inconclusive"


def test_labels_without_the_last_token_are_equal() -> None:
    shorter = replace_arrays(make_batch(), labels=make_batch().arrays["labels"][:, :-1])
    assert collect_common_findings(compare(shorter, make_batch()))["labels"] == ("agree", "equal")


def test_ignored_labels_differ_unless_the_other_side_masks_them() -> None:
    ignored = make_batch().arrays["labels"].copy()
    ignored[:, :5] = -100
    target = replace_arrays(make_batch(), labels=ignored)
    assert collect_common_findings(compare(target, make_batch()))["labels"] == (
        "differ",
        "equal, but 30 are ignored (negative) on one side only",
    )
    masked = replace_arrays(make_batch(), loss_mask=(ignored >= 0).astype(float))
    assert collect_common_findings(compare(target, masked))["labels"] == ("agree", "equal")


def test_differences_of_masks_and_positions_are_located() -> None:
    full_mask, positions = np.ones((6, 24)), np.tile(np.arange(24), (6, 1))
    mask = full_mask.copy()
    mask[1, 3] = 0
    target = replace_arrays(make_batch(), loss_mask=mask, positions=positions + 1)
    findings = collect_common_findings(
        compare(target, replace_arrays(make_batch(), loss_mask=full_mask, positions=positions))
    )
    assert findings["loss mask"] == (
        "differ",
        "143 tokens count against 144, first at sample 1, position 3",
    )
    assert findings["positions"] == ("differ", "the target's are higher by 1")


def test_fields_that_only_one_side_knows_are_listed() -> None:
    target = replace_arrays(make_batch(), positions=np.tile(np.arange(24), (6, 1)))
    comparison = compare(target, Batch("x", "dump", "", {"tokens": TEXT[:, :-1]}))
    assert comparison.missing == (
        "labels: not found in the reference",
        "positions: known for the target only",
    )
    assert comparison.verdict == "agree"


@given(order=st.permutations(range(6)))
def test_any_order_of_samples_is_found(order: list[int]) -> None:
    relation = relate_tokens(TEXT[order], TEXT)
    assert list(relation.reference_samples) == order
    assert relation.kind == ("identical" if order == list(range(6)) else "reordered")
