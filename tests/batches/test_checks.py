"""Checks of one side's batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dumpdiff.batches import Batch, Vocabulary, compare
from dumpdiff.batches.checks import UNKNOWN_VOCABULARY

TEXT = np.random.default_rng(5).integers(1, 90, (4, 26))


def check_target(
    known_ids: Vocabulary = UNKNOWN_VOCABULARY,
    kind: Any = "dump",
    vocabulary: int | None = None,
    **arrays: Any,
) -> dict[str, Any]:
    batch = Batch("x", kind, "", {"tokens": TEXT[:, :24], **arrays}, vocabulary=vocabulary)
    findings = compare(batch, batch, known_ids).findings
    target_findings = [finding for finding in findings if finding.side == "target"]
    return {finding.name: (finding.state, finding.summary) for finding in target_findings}


@pytest.mark.parametrize(
    ("vocabulary", "size", "state", "summary"),
    [
        (None, None, "agree", "the size of the vocabulary is not known"),
        (90, None, "agree", "of a vocabulary of 90"),
        (90, 50, "differ", "outside of the vocabulary of 50: first "),
    ],
)
def test_ids_must_be_in_the_vocabulary(
    vocabulary: int | None, size: int | None, state: str, summary: str
) -> None:
    result = check_target(Vocabulary(size=size), vocabulary=vocabulary)["ids"]
    assert result[0] == state
    assert summary in result[1]


def test_negative_ids_are_in_no_vocabulary() -> None:
    assert check_target(tokens=np.array([[3, -1, 2]]))["ids"] == (
        "differ",
        "-1 to 3, the size of the vocabulary is not known",
    )


def test_ids_out_of_range_differ_even_if_both_sides_have_them() -> None:
    batch = Batch("x", "dump", "", {"tokens": TEXT}, vocabulary=50)
    assert compare(batch, batch).verdict == "differ"


def test_special_ids_are_counted() -> None:
    tokens = np.array([[1, 7, 8, 2, 0, 0]])
    summary = check_target(
        Vocabulary(bos=1, eos=2, pad=0, special_names={1: "<s>", 8: "<sep>", 9: "<mask>"}),
        tokens=tokens,
    )["special ids"][1]
    assert summary == "<sep> (8) 1 times, bos (1) 1 times, eos (2) 1 times, pad (0) 2 times"


@pytest.mark.parametrize(
    ("shift", "kind", "state", "summary"),
    [
        (1, "dump", "agree", "each label is the next token"),
        (1, "file", "agree", "each label is the next token: the model must not shift them again"),
        (0, "dump", "warning", "the labels are the tokens themselves"),
        (
            0,
            "file",
            "agree",
            "the labels are the tokens themselves: correct if the model shifts them",
        ),
        (2, "dump", "warning", "each label is the token after the next: shifted twice"),
    ],
)
def test_the_shift_of_labels_is_recognized(shift: int, kind: str, state: str, summary: str) -> None:
    result = check_target(kind=kind, labels=TEXT[:, shift : 24 + shift])["label shift"]
    assert result[0] == state
    assert result[1].startswith(summary)


def test_labels_shifted_backwards_are_distinguished_from_unrelated_labels() -> None:
    assert (
        "shifted backwards"
        in check_target(tokens=TEXT[:, 1:25], labels=TEXT[:, :24])["label shift"][1]
    )
    assert check_target(labels=TEXT[:, :24] + 1)["label shift"] == (
        "warning",
        "the labels are not the tokens shifted by one",
    )


def test_ignored_labels_do_not_hide_a_shift() -> None:
    labels = TEXT[:, 1:25].copy()
    labels[:, :10] = -100
    result = check_target(labels=labels)
    assert result["label shift"] == ("agree", "each label is the next token")
    assert result["loss mask"] == ("agree", "56 of 96 tokens count")


def test_padding_must_not_enter_the_loss() -> None:
    labels = TEXT[:, 1:25].copy()
    labels[:, 20:] = 0
    full_mask, padding_mask = np.ones((4, 24)), (labels != 0).astype(float)
    assert check_target(Vocabulary(pad=0), labels=labels, loss_mask=full_mask)["loss mask"] == (
        "warning",
        "96 of 96 tokens count, 16 of them are padding (0)",
    )
    assert check_target(Vocabulary(pad=0), labels=labels, loss_mask=padding_mask)["loss mask"] == (
        "agree",
        "80 of 96 tokens count",
    )
    assert check_target(labels=labels, loss_mask=0 * full_mask)["loss mask"][0] == "warning"


@pytest.mark.parametrize(
    ("row", "state", "summary"),
    [
        (np.arange(24), "agree", "0, 1, 2, ... in all samples"),
        (np.arange(24) % 8, "agree", "restart 8 times within samples"),
        (np.arange(24) + 1, "warning", "samples begin at position 1"),
        (np.arange(24) * 2, "warning", "do not count up by one"),
    ],
)
def test_positions_count_up_from_0(row: np.ndarray, state: str, summary: str) -> None:
    assert check_target(positions=np.tile(row, (4, 1)))["positions"] == (state, summary)


def test_repeated_samples_are_counted() -> None:
    assert check_target(tokens=TEXT[[0, 1, 0, 0]])["repeats"] == (
        "warning",
        "2 of 4 samples are in the batch more than once",
    )


def test_a_warning_is_no_difference_but_is_in_the_headline() -> None:
    batch = Batch("x", "dump", "", {"tokens": TEXT[[0, 0]]})
    stage = compare(batch, batch).to_stage()
    assert stage.verdict == "agree"
    assert "2 to look at: target, repeats: 1 of 2 samples" in stage.headline
