"""Orders of rows: what is built is what is described, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.weight_comparison.row_permutation import (
    SAME,
    described,
    grouped,
    inverse,
    regrouped,
    within,
)

NAMES = ["q", "k", "v"]


@st.composite
def fused(draw: st.DrawFn) -> tuple[list[int], int]:
    """Sizes of three parts, and groups that they divide by."""
    groups = draw(st.integers(1, 6))
    return [groups * draw(st.integers(2, 5)) for _ in NAMES], groups


@given(fused())
def test_a_grouped_order_is_described_by_its_groups(made: tuple[list[int], int]) -> None:
    sizes, groups = made
    layout = described(grouped(sizes, groups), sizes, NAMES)
    assert layout.parts.groups == groups
    assert layout.parts.kind == ("concatenated" if groups == 1 else "grouped")
    assert all(order == SAME for order in layout.inside)


@given(fused(), st.permutations(range(3)))
def test_parts_in_other_turns_are_seen(made: tuple[list[int], int], turn: list[int]) -> None:
    sizes, groups = made
    layout = described(grouped(sizes, groups, turn), sizes, NAMES)
    assert layout.parts.said.startswith("[" + "; ".join(NAMES[part] for part in turn))
    assert ("exchanged" in layout.parts.kind) == (turn != sorted(turn))


@given(fused())
def test_an_order_is_a_permutation_and_its_inverse_undoes_it(made: tuple[list[int], int]) -> None:
    order = grouped(*made)
    assert sorted(order) == list(range(sum(made[0])))
    np.testing.assert_array_equal(order[inverse(order)], np.arange(len(order)))


@given(st.integers(1, 12), st.integers(2, 16), st.booleans())
def test_rope_layouts_of_any_heads(heads: int, half: int, to_pairs: bool) -> None:
    order = regrouped(heads, 2, half) if to_pairs else regrouped(heads, half, 2)
    found = within(order)
    assert found.kind == "rope"
    assert half == 2 or ("in pairs where" in found.said) == to_pairs
    assert heads == 1 or f"each of {heads} heads" in found.said


@given(st.integers(2, 4), st.integers(1, 8), st.integers(3, 8))
def test_rope_rows_after_others(heads: int, plain: int, half: int) -> None:
    """MLA: only the last rows of each head turn."""
    head = np.concatenate([np.arange(plain), plain + regrouped(1, half, 2)])
    order = (np.arange(heads)[:, None] * len(head) + head).ravel()
    found = within(order)
    assert found.kind == "rope"
    assert found.said.startswith(f"{2 * half} rows of each of {heads} heads in halves")


@given(st.integers(5, 50), st.integers(1, 4))
def test_shifts(length: int, step: int) -> None:
    rows = np.arange(length)
    assert within(np.where(rows >= step, rows - step, -1)).said == f"rows shifted by {step}"
    if 2 * step < length:
        assert within(np.roll(rows, step)).said == f"rows shifted by {step}, cyclically"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([4, 5, 2, 3, 0, 1], "2 of 3 blocks of 2 rows in other places"),
        ([2, 3, 0, 1], "the two halves of its 4 rows exchanged"),
        (
            [0, 3, 1, 4, 2, 5],
            "rows of the weight in pairs where the other side has halves: another RoPE layout",
        ),
        ([3, 0, 5, 1, 4, 2], "5 of 6 rows in other places"),
        ([0, -1, 2, 3], "as they are"),
    ],
)
def test_what_orders_are_called(order: list[int], said: str) -> None:
    assert within(np.array(order)).said == said


def test_a_part_that_does_not_divide_has_no_such_order() -> None:
    assert grouped([6, 4], 4) is None
