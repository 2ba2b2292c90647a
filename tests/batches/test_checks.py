"""What is wrong with one side's batch by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dumpdiff.batches import Batch, Vocabulary, compare

TEXT = np.random.default_rng(5).integers(1, 90, (4, 26))


def found(
    ids: Vocabulary = Vocabulary(),  # noqa: B008
    kind: Any = "dump",
    vocabulary: int | None = None,
    **arrays: Any,
) -> dict[str, Any]:
    batch = Batch("x", kind, "", {"tokens": TEXT[:, :24], **arrays}, vocabulary=vocabulary)
    return {
        f.name: (f.state, f.summary) for f in compare(batch, batch, ids).findings if f.side == "target"
    }


@pytest.mark.parametrize(
    ("vocabulary", "given", "state", "said"),
    [
        (None, None, "agree", "the size of the vocabulary is not known"),
        (90, None, "agree", "of a vocabulary of 90"),
        (90, 50, "differ", "outside of the vocabulary of 50: first "),
    ],
)
def test_ids_lie_in_the_vocabulary(
    vocabulary: int | None, given: int | None, state: str, said: str
) -> None:
    result = found(Vocabulary(size=given), vocabulary=vocabulary)["ids"]
    assert result[0] == state
    assert said in result[1]


def test_a_negative_id_is_in_no_vocabulary() -> None:
    assert found(tokens=np.array([[3, -1, 2]]))["ids"] == (
        "differ",
        "-1 to 3, the size of the vocabulary is not known",
    )


def test_an_id_out_of_range_is_a_difference_even_where_both_sides_have_it() -> None:
    batch = Batch("x", "dump", "", {"tokens": TEXT}, vocabulary=50)
    assert compare(batch, batch).verdict == "differ"


def test_special_ids_are_counted() -> None:
    tokens = np.array([[1, 7, 8, 2, 0, 0]])
    said = found(
        Vocabulary(bos=1, eos=2, pad=0, special_names={1: "<s>", 8: "<sep>", 9: "<mask>"}), tokens=tokens
    )["special ids"][1]
    assert said == "<sep> (8) 1 times, bos (1) 1 times, eos (2) 1 times, pad (0) 2 times"


@pytest.mark.parametrize(
    ("shift", "kind", "state", "said"),
    [
        (1, "dump", "agree", "each label is the next token"),
        (1, "file", "agree", "each label is the next token: the model must not shift them again"),
        (0, "dump", "warning", "the labels are the tokens themselves"),
        (
            0,
            "file",
            "agree",
            "the labels are the tokens themselves: right if the model shifts them",
        ),
        (2, "dump", "warning", "each label is the token after the next: shifted twice"),
    ],
)
def test_the_shift_of_labels_is_named(shift: int, kind: str, state: str, said: str) -> None:
    result = found(kind=kind, labels=TEXT[:, shift : 24 + shift])["label shift"]
    assert result[0] == state
    assert result[1].startswith(said)


def test_labels_shifted_backwards_and_strange_labels_are_told_apart() -> None:
    assert "shifted backwards" in found(tokens=TEXT[:, 1:25], labels=TEXT[:, :24])["label shift"][1]
    assert found(labels=TEXT[:, :24] + 1)["label shift"] == (
        "warning",
        "the labels are not the tokens moved on by one",
    )


def test_ignored_labels_do_not_hide_a_shift() -> None:
    labels = TEXT[:, 1:25].copy()
    labels[:, :10] = -100
    result = found(labels=labels)
    assert result["label shift"] == ("agree", "each label is the next token")
    assert result["loss mask"] == ("agree", "56 of 96 tokens count")


def test_padding_must_not_enter_the_loss() -> None:
    labels = TEXT[:, 1:25].copy()
    labels[:, 20:] = 0
    ones, right = np.ones((4, 24)), (labels != 0).astype(float)
    assert found(Vocabulary(pad=0), labels=labels, loss_mask=ones)["loss mask"] == (
        "warning",
        "96 of 96 tokens count, 16 of them are padding (0)",
    )
    assert found(Vocabulary(pad=0), labels=labels, loss_mask=right)["loss mask"] == (
        "agree",
        "80 of 96 tokens count",
    )
    assert found(labels=labels, loss_mask=0 * ones)["loss mask"][0] == "warning"


@pytest.mark.parametrize(
    ("row", "state", "said"),
    [
        (np.arange(24), "agree", "0, 1, 2, ... in all samples"),
        (np.arange(24) % 8, "agree", "begin anew 8 times within samples"),
        (np.arange(24) + 1, "warning", "samples begin at position 1"),
        (np.arange(24) * 2, "warning", "do not count up by one"),
    ],
)
def test_positions_count_up_from_0(row: np.ndarray, state: str, said: str) -> None:
    assert found(positions=np.tile(row, (4, 1)))["positions"] == (state, said)


def test_samples_that_repeat_are_counted() -> None:
    assert found(tokens=TEXT[[0, 1, 0, 0]])["repeats"] == (
        "warning",
        "2 of 4 samples are in the batch more than once",
    )


def test_a_warning_alone_is_no_difference_but_is_in_the_headline() -> None:
    batch = Batch("x", "dump", "", {"tokens": TEXT[[0, 0]]})
    stage = compare(batch, batch).to_stage()
    assert stage.verdict == "agree"
    assert "2 to look at: target, repeats: 1 of 2 samples" in stage.headline
