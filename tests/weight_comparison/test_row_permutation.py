"""Orders of rows are described as they were built, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.weight_comparison.row_permutation import (
    SAME,
    build_fused_order,
    describe_layout,
    describe_order,
    invert_order,
    swap_row_axes,
)

NAMES = ["q", "k", "v"]


@st.composite
def draw_fused_sizes(draw: st.DrawFn) -> tuple[list[int], int]:
    """Draw the sizes of three parts, and a number of groups that divides them."""
    groups = draw(st.integers(1, 6))
    return [groups * draw(st.integers(2, 5)) for _ in NAMES], groups


@given(draw_fused_sizes())
def test_a_grouped_order_is_described_by_its_groups(
    sizes_and_groups: tuple[list[int], int],
) -> None:
    sizes, groups = sizes_and_groups
    layout = describe_layout(build_fused_order(sizes, groups), sizes, NAMES)
    assert layout.component_arrangement.groups == groups
    assert layout.component_arrangement.kind == ("concatenated" if groups == 1 else "grouped")
    assert all(order == SAME for order in layout.component_orders)


@given(draw_fused_sizes(), st.permutations(range(3)))
def test_exchanged_parts_are_described(
    sizes_and_groups: tuple[list[int], int], sequence: list[int]
) -> None:
    sizes, groups = sizes_and_groups
    layout = describe_layout(build_fused_order(sizes, groups, sequence), sizes, NAMES)
    assert layout.component_arrangement.description.startswith(
        "[" + "; ".join(NAMES[part] for part in sequence)
    )
    assert ("exchanged" in layout.component_arrangement.kind) == (sequence != sorted(sequence))


@given(draw_fused_sizes())
def test_an_order_is_a_permutation_and_its_inverse_undoes_it(
    sizes_and_groups: tuple[list[int], int],
) -> None:
    order = build_fused_order(*sizes_and_groups)
    assert sorted(order) == list(range(sum(sizes_and_groups[0])))
    np.testing.assert_array_equal(order[invert_order(order)], np.arange(len(order)))


@given(st.integers(1, 12), st.integers(2, 16), st.booleans())
def test_rope_layouts_of_any_heads_are_described(heads: int, half: int, to_pairs: bool) -> None:
    order = swap_row_axes(heads, 2, half) if to_pairs else swap_row_axes(heads, half, 2)
    row_order = describe_order(order, "q")
    assert row_order.kind == "rope"
    assert half == 2 or ("in pairs where" in row_order.description) == to_pairs
    assert heads == 1 or f"each of {heads} heads" in row_order.description


@given(st.integers(2, 4), st.integers(1, 8), st.integers(3, 8))
def test_rope_rows_after_others_are_described(heads: int, n_unrotated: int, half: int) -> None:
    """MLA rotates only the last rows of each head."""
    head = np.concatenate([np.arange(n_unrotated), n_unrotated + swap_row_axes(1, half, 2)])
    order = (np.arange(heads)[:, None] * len(head) + head).ravel()
    row_order = describe_order(order, "q")
    assert row_order.kind == "rope"
    assert row_order.description.startswith(f"{2 * half} rows of each of {heads} heads in halves")


@given(st.integers(5, 50), st.integers(1, 4))
def test_shifts_are_described(length: int, step: int) -> None:
    rows = np.arange(length)
    assert (
        describe_order(np.where(rows >= step, rows - step, -1), "q").description
        == f"rows shifted by {step}"
    )
    if 2 * step < length:
        assert (
            describe_order(np.roll(rows, step), "q").description
            == f"rows shifted by {step}, cyclically"
        )


@pytest.mark.parametrize(
    ("order", "description"),
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
def test_orders_are_described(order: list[int], description: str) -> None:
    assert describe_order(np.array(order), "q").description == description


@pytest.mark.parametrize("module", ["router", "up_proj", "embedding"])
@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 3, 1, 4, 2, 5]])
def test_rows_that_are_not_rotated_have_no_rope_layout(order: list[int], module: str) -> None:
    assert describe_order(np.array(order), module).kind == "scattered"


def test_a_part_that_does_not_divide_has_no_such_order() -> None:
    assert build_fused_order([6, 4], 4) is None
