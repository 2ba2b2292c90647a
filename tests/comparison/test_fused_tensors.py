"""The order in which one weight holds the rows of several others is found by trying."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.comparison.fused_tensors import cut_part, join_parts


def make_weights(*rows, columns=6, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal((count, columns)).astype(np.float32) for count in rows]


def join_blocks(parts, count):
    """Join block by block: the first rows of each part, then the second rows of each, ..."""
    pieces = [np.split(part, count) for part in parts]
    return np.concatenate([piece for block in zip(*pieces, strict=True) for piece in block])


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_parts_are_concatenated_in_any_order(order):
    parts = make_weights(8, 4, 4)
    layout, joined = join_parts(np.concatenate([parts[i] for i in order]), parts)
    assert layout == f"concat({','.join(map(str, order))}) of rows"
    np.testing.assert_array_equal(joined, np.concatenate([parts[i] for i in order]))


@pytest.mark.parametrize("count", [2, 4])
def test_query_groups_with_their_keys_and_values_are_blocks(count):
    parts = make_weights(16, 8, 8)
    layout, joined = join_parts(join_blocks(parts, count), parts)
    assert layout == f"blocks({count}: 0,1,2) of rows"
    np.testing.assert_array_equal(joined, join_blocks(parts, count))


def test_gate_and_up_row_by_row_are_interleaved():
    gate, up = make_weights(8, 8)
    fused_weight = np.stack([gate, up], axis=1).reshape(16, 6)
    assert join_parts(fused_weight, [gate, up])[0] == "interleaved(0,1) of rows"


def test_transposed_weights_are_joined_by_columns():
    parts = make_weights(8, 4, 4)
    layout, joined = join_parts(np.concatenate(parts).T, [part.T for part in parts])
    assert layout == "concat(0,1,2) of columns"
    np.testing.assert_array_equal(joined, np.concatenate(parts).T)


def test_leading_axes_of_activations_may_be_merged():
    parts = [part.T.reshape(2, 3, -1) for part in make_weights(8, 4)]
    fused_weight = np.concatenate(parts, axis=-1)
    layout, joined = join_parts(fused_weight.reshape(6, 12), parts)
    assert layout == "concat(0,1) of columns"
    np.testing.assert_array_equal(joined, fused_weight.reshape(6, 12))


@given(st.integers(1, 3), st.integers(0, 5), st.floats(1e-4, 1e-2))
def test_the_order_is_found_if_a_part_differs_slightly(groups, seed, size):
    parts = make_weights(6 * groups, 6 * groups, seed=seed)
    fused_weight = join_blocks(parts, groups)
    faulty = [parts[0], parts[1] * (1 + size)]
    layout, joined = join_parts(fused_weight, faulty)
    assert layout == join_parts(fused_weight, parts)[0]
    assert np.linalg.norm(joined - fused_weight) <= size * np.linalg.norm(fused_weight)


def test_shapes_that_do_not_add_up_raise_an_error():
    with pytest.raises(ValueError, match=r"do not make up \(16, 6\)"):
        join_parts(*[make_weights(16)[0], make_weights(8, 4)])


@pytest.mark.parametrize("fused_shape", [(5, 9, 2), (5, 9, 1, 2)])
def test_parts_may_be_joined_along_an_inner_axis(fused_shape):
    """As kernels (out, in, width), in place of (out, in, 1, width)."""
    kernels = [np.random.default_rng(seed).standard_normal((5, 3, 1, 2)) for seed in range(3)]
    fused_kernel = np.concatenate(kernels, axis=1).reshape(fused_shape)
    for is_numbered in (False, True):
        layout, joined = join_parts(fused_kernel, kernels, is_numbered=is_numbered)
        assert layout == "concat(0,1,2) of axis 1"
        np.testing.assert_array_equal(joined, fused_kernel)


class TestNumberedParts:
    """Experts, or tables: their numbers say in which order they are."""

    def test_they_may_be_stacked_along_a_new_axis(self):
        experts = make_weights(8, 8, 8)
        layout, joined = join_parts(np.stack(experts), experts, is_numbered=True)
        assert layout == "stacked(3)"
        np.testing.assert_array_equal(joined, np.stack(experts))

    def test_stacked_parts_may_be_transposed_and_the_stack_a_matrix(self):
        experts = make_weights(8, 8, 8)
        stack = np.stack([expert.T for expert in experts]).reshape(6, 24)
        layout, joined = join_parts(stack, experts, is_numbered=True)
        assert layout == "stacked(3), transposed"
        np.testing.assert_array_equal(joined, stack)

    def test_tables_of_other_shapes_are_concatenated(self):
        tables = make_weights(8, 4, 2)
        assert (
            join_parts(np.concatenate(tables), tables, is_numbered=True)[0]
            == "concat(0,1,2) of rows"
        )

    def test_another_order_of_the_experts_is_a_difference(self):
        experts = make_weights(8, 8)
        _, joined = join_parts(np.stack(experts[::-1]), experts, is_numbered=True)
        assert not np.array_equal(joined, np.stack(experts[::-1]))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_order_is_found_in_float64_of_any_magnitude(scale):
    parts = [part.astype(np.float64) * scale for part in make_weights(4, 4)]
    layout, joined = join_parts(np.concatenate(parts[::-1]), parts)
    assert layout == "concat(1,0) of rows"
    np.testing.assert_array_equal(joined, np.concatenate(parts[::-1]))


@pytest.mark.parametrize("count", [1, 2])
def test_a_part_is_cut_from_where_it_was_joined(count):
    """Also where the fused tensor differs: then the nearest order counts."""
    parts = make_weights(4, 4, 4)
    fused = join_blocks(parts, count) + 1e-3
    for number, part in enumerate(parts):
        np.testing.assert_allclose(cut_part(fused, parts, number), part + 1e-3, rtol=1e-5)


def test_a_kernel_holds_the_weights_of_a_cell_transposed():
    """Input and state are joined, and multiplied by one kernel of (inputs, gates)."""
    of_input, of_state = make_weights(8, columns=5)[0], make_weights(8, columns=2, seed=1)[0]
    kernel = np.concatenate([of_input, of_state], axis=1).T
    layout, joined = join_parts(kernel, [of_input, of_state])
    assert layout == "concat(0,1) of columns, transposed"
    np.testing.assert_array_equal(joined, kernel)
    np.testing.assert_array_equal(cut_part(kernel, [of_input, of_state], 1), of_state)


def test_each_matrix_of_a_stack_may_be_transposed():
    """einsum("bnk,ndk->bnd") holds the waves of each number in its columns."""
    cosine, sine = (np.stack(make_weights(8, 8, 8, columns=16, seed=seed)) for seed in (0, 1))
    fused = np.concatenate([cosine, sine], axis=1).transpose(0, 2, 1)
    layout, joined = join_parts(fused, [sine, cosine])
    assert layout == "concat(1,0) of axis 1, transposed"
    np.testing.assert_array_equal(joined, fused)


def test_matrices_of_other_sizes_do_not_fit_transposed_either():
    with pytest.raises(ValueError, match="do not make up"):
        join_parts(np.zeros((4, 4)), [np.zeros((4, 1)), np.zeros((4, 1))])


def test_a_vector_may_be_the_last_column_of_a_matrix():
    (rows,) = make_weights(8, columns=7)
    parts = [rows[:, :6], rows[:, 6]]
    layout, joined = join_parts(rows, parts)
    assert layout == "concat(0,1) of columns"
    np.testing.assert_array_equal(joined, rows)
    np.testing.assert_array_equal(cut_part(rows, parts, 1), rows[:, 6])
