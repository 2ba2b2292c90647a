"""Rows of one value that both sides hold, other ones or in another order: no op shows why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import HYPOTHESES, LAST_HYPOTHESES
from dumpdiff.model.arrays import AnyArray

from .fault_cases import make_fault_case, make_operand

RNG = np.random.default_rng(6)
WIDTH = 8
#: Rows of two images of 3 x 4 pixels.
TABLE = RNG.standard_normal((24, WIDTH))
IMAGES, ROWS = TABLE.reshape(2, 3, 4, WIDTH), TABLE.reshape(2, 12, WIDTH)
#: Places in each of two sequences of 12.
PLACES = np.array([[0, 3, 5, 7], [2, 4, 1, 9]])
OFFSETS = np.array([[0], [12]])


def explain(faulty: AnyArray, faithful: AnyArray, **operands: AnyArray) -> tuple[str, str]:
    """Return (cause, sentence without place and residual) of the best hypothesis of the last."""
    case = make_fault_case(faulty, faithful, operands, scope="block")
    causes = search_causes([case], LAST_HYPOTHESES).causes
    if not causes:
        return "", ""
    text = causes[0].text.removeprefix("block behaves as ").partition("; residual")[0]
    return causes[0].name, text


@pytest.mark.parametrize(("faulty", "cause", "sentence"), [
    (np.roll(IMAGES, 1, 2), "row-shift", "the rows of x rolled by 1 along axis 2 of (2, 3, 4)"),
    (np.roll(IMAGES, (1, -1), (1, 2)), "row-shift",
     "the rows of x rolled by 1 along axis 1 and by -1 along axis 2 of (2, 3, 4)"),
    (IMAGES[:, ::-1], "scan-direction", "the rows of x reversed along axis 1 of (2, 3, 4)"),
    (ROWS[:, ::-1], "scan-direction", "the rows of x reversed along axis 1 of (2, 12)"),
    (IMAGES.swapaxes(1, 2), "axes-swapped",
     "the rows of x read with axes 1 and 2 of (2, 3, 4) exchanged"),
])  # fmt: skip
def test_the_rows_of_images_are_moved(faulty: AnyArray, cause: str, sentence: str) -> None:
    """The pixels of an image lie on one axis."""
    assert explain(faulty.reshape(ROWS.shape), ROWS, x=TABLE) == (cause, sentence)


@pytest.mark.parametrize(("faulty", "faithful", "cause", "sentence"), [
    (TABLE[PLACES], TABLE[PLACES + OFFSETS], "missing-term",
     "rows of x counted in each of 2 blocks, without 12 times its number; "
     "the reference adds that offset"),
    (TABLE[PLACES + OFFSETS], TABLE[PLACES], "missing-term",
     "rows of x counted from the first of 2 blocks on; "
     "the reference counts them in each block, without 12 times its number"),
    (TABLE[PLACES[0] + 2], TABLE[PLACES[0]], "row-shift", "rows of x shifted by 2"),
    (TABLE[[9, 8, 1, 6]], TABLE[PLACES[0]], "input-source",
     "rows [9 8 1 6] of x; the reference takes rows [0 3 5 7]"),
])  # fmt: skip
def test_other_rows_are_selected(
    faulty: AnyArray, faithful: AnyArray, cause: str, sentence: str
) -> None:
    assert explain(faulty, faithful, x=TABLE) == (cause, sentence)


def test_a_value_whose_rows_are_moved_needs_no_operand() -> None:
    assert explain(ROWS[:, ::-1], ROWS) == (
        "scan-direction",
        "its rows reversed along axis 1 of (2, 12)",
    )


def test_rows_that_the_table_does_not_hold_are_not_explained() -> None:
    assert explain(ROWS[:, ::-1] * 1.01, ROWS, x=TABLE) == ("", "")


def explain_columns(faulty: AnyArray, faithful: AnyArray, scope: str) -> tuple[str, str]:
    """Return (cause, sentence) of a result of a product whose columns are in another order."""
    case = replace(make_fault_case(faulty, faithful, {}, scope=scope), kinds=("matmul",))
    cause = search_causes([case], HYPOTHESES).causes[0]
    return cause.name, cause.text.partition("behaves as ")[2].partition("; residual")[0]


COLUMNS = RNG.standard_normal((2, 6, 12))


def test_columns_read_with_two_axes_exchanged() -> None:
    """The last axis holds 4 x 3 numbers, which one side reads as 3 x 4; or a part of it does."""
    moved = COLUMNS.reshape(2, 6, 4, 3).swapaxes(2, 3).reshape(COLUMNS.shape)
    text = "columns read with axes {} and {} exchanged"
    assert explain_columns(moved, COLUMNS, "block") == ("axes-swapped", text.format(4, 3))
    part = [0, 1, 2, 4, 3, 5, *range(6, 12)]
    assert explain_columns(COLUMNS[..., part], COLUMNS, "block") == (
        "axes-swapped",
        text.format(2, 2),
    )


def test_columns_in_another_order_are_those_of_heads_in_attention_alone() -> None:
    moved = COLUMNS[..., [3, 1, 7, 0, 11, 2, 5, 4, 10, 6, 9, 8]]
    text = "columns in another order"
    assert explain_columns(moved, COLUMNS, "block") == ("split-order", text)
    assert explain_columns(moved, COLUMNS, "layers.1.attention") == ("heads-permuted", text)


def test_axes_that_are_joined_with_the_batch_are_exchanged() -> None:
    """Three times of four patches, in each of two clips, lie on one axis with the clips."""
    moved = TABLE.reshape(2, 3, 4, WIDTH).swapaxes(1, 2).reshape(24, WIDTH)
    assert explain(moved, TABLE) == (
        "axes-swapped",
        "its rows read with its axes of 3 and 4 exchanged",
    )


def test_rows_of_a_table_whose_indices_were_given_are_another_batch() -> None:
    """Months as strings are counted in the order 1, 10, 11, 12, 2."""
    ids, others, table = PLACES, (5 * PLACES) % 24, TABLE.astype(np.float32)
    case = make_fault_case(table[others], table[ids], {"table.weight": table, "months": ids})
    for operands, cause in (((make_operand("months", others),), "batch"), ((), "row-shift")):
        causes = search_causes([replace(case, faulty_operands=operands)], HYPOTHESES).causes
        assert causes[0].name == cause
