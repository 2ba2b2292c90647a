"""Orders of rows: what is built is what is described, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.weight_comparison.row_permutation import (
    SAME,
    describe_layout,
    build_fused_order,
    invert_order,
    swap_row_axes,
    describe_order,
)

NAMES = ["q", "k", "v"]


@st.composite
def draw_fused_sizes(draw: st.DrawFn) -> tuple[list[int], int]:
    """Sizes of three parts, and groups that they divide by."""
    groups = draw(st.integers(1, 6))
    return [groups * draw(st.integers(2, 5)) for _ in NAMES], groups


@given(draw_fused_sizes())
def test_a_grouped_order_is_described_by_its_groups(made: tuple[list[int], int]) -> None:
    sizes, groups = made
    layout = describe_layout(build_fused_order(sizes, groups), sizes, NAMES)
    assert layout.part_arrangement.groups == groups
    assert layout.part_arrangement.kind == ("concatenated" if groups == 1 else "grouped")
    assert all(order == SAME for order in layout.part_orders)


@given(draw_fused_sizes(), st.permutations(range(3)))
def test_parts_in_other_turns_are_seen(made: tuple[list[int], int], turn: list[int]) -> None:
    sizes, groups = made
    layout = describe_layout(build_fused_order(sizes, groups, turn), sizes, NAMES)
    assert layout.part_arrangement.description.startswith("[" + "; ".join(NAMES[part] for part in turn))
    assert ("exchanged" in layout.part_arrangement.kind) == (turn != sorted(turn))


@given(draw_fused_sizes())
def test_an_order_is_a_permutation_and_its_inverse_undoes_it(made: tuple[list[int], int]) -> None:
    order = build_fused_order(*made)
    assert sorted(order) == list(range(sum(made[0])))
    np.testing.assert_array_equal(order[invert_order(order)], np.arange(len(order)))


@given(st.integers(1, 12), st.integers(2, 16), st.booleans())
def test_rope_layouts_of_any_heads(heads: int, half: int, to_pairs: bool) -> None:
    order = swap_row_axes(heads, 2, half) if to_pairs else swap_row_axes(heads, half, 2)
    found = describe_order(order)
    assert found.kind == "rope"
    assert half == 2 or ("in pairs where" in found.description) == to_pairs
    assert heads == 1 or f"each of {heads} heads" in found.description


@given(st.integers(2, 4), st.integers(1, 8), st.integers(3, 8))
def test_rope_rows_after_others(heads: int, plain: int, half: int) -> None:
    """MLA: only the last rows of each head turn."""
    head = np.concatenate([np.arange(plain), plain + swap_row_axes(1, half, 2)])
    order = (np.arange(heads)[:, None] * len(head) + head).ravel()
    found = describe_order(order)
    assert found.kind == "rope"
    assert found.description.startswith(f"{2 * half} rows of each of {heads} heads in halves")


@given(st.integers(5, 50), st.integers(1, 4))
def test_shifts(length: int, step: int) -> None:
    rows = np.arange(length)
    assert describe_order(np.where(rows >= step, rows - step, -1)).description == f"rows shifted by {step}"
    if 2 * step < length:
        assert describe_order(np.roll(rows, step)).description == f"rows shifted by {step}, cyclically"


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
    assert describe_order(np.array(order)).description == said


def test_a_part_that_does_not_divide_has_no_such_order() -> None:
    assert build_fused_order([6, 4], 4) is None
