"""In which order one weight holds the rows of several: found by trying, because equal values prove it."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.comparison.fused_tensors import join_parts, compute_joint_statistics


def weights(*rows, columns=6, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal((count, columns)).astype(np.float32) for count in rows]


def blocks(parts, count):
    """Block by block: the first rows of each part, then the second rows of each, ..."""
    pieces = [np.split(part, count) for part in parts]
    return np.concatenate([piece for block in zip(*pieces, strict=True) for piece in block])


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_one_part_after_the_other_in_any_order(order):
    parts = weights(8, 4, 4)
    layout, joined = join_parts(np.concatenate([parts[i] for i in order]), parts)
    assert layout == f"concat({','.join(map(str, order))}) of rows"
    np.testing.assert_array_equal(joined, np.concatenate([parts[i] for i in order]))


@pytest.mark.parametrize("count", [2, 4])
def test_query_groups_with_their_keys_and_values(count):
    parts = weights(16, 8, 8)
    layout, joined = join_parts(blocks(parts, count), parts)
    assert layout == f"blocks({count}: 0,1,2) of rows"
    np.testing.assert_array_equal(joined, blocks(parts, count))


def test_gate_and_up_row_by_row():
    gate, up = weights(8, 8)
    whole = np.stack([gate, up], axis=1).reshape(16, 6)
    assert join_parts(whole, [gate, up])[0] == "interleaved(0,1) of rows"


def test_weights_stored_the_other_way_are_joined_by_columns():
    parts = weights(8, 4, 4)
    layout, joined = join_parts(np.concatenate(parts).T, [part.T for part in parts])
    assert layout == "concat(0,1,2) of columns"
    np.testing.assert_array_equal(joined, np.concatenate(parts).T)


def test_activations_may_have_their_leading_axes_merged():
    parts = [part.T.reshape(2, 3, -1) for part in weights(8, 4)]
    whole = np.concatenate(parts, axis=-1)
    layout, joined = join_parts(whole.reshape(6, 12), parts)
    assert layout == "concat(0,1) of columns"
    np.testing.assert_array_equal(joined, whole.reshape(6, 12))


@given(st.integers(1, 3), st.integers(0, 5), st.floats(1e-4, 1e-2))
def test_the_order_is_found_though_a_part_differs_a_little(groups, seed, size):
    parts = weights(6 * groups, 6 * groups, seed=seed)
    whole = blocks(parts, groups)
    faulty = [parts[0], parts[1] * (1 + size)]
    layout, joined = join_parts(whole, faulty)
    assert layout == join_parts(whole, parts)[0]
    assert np.linalg.norm(joined - whole) <= size * np.linalg.norm(whole)


def test_shapes_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match=r"do not make up \(16, 6\)"):
        join_parts(*[weights(16)[0], weights(8, 4)])


def test_the_statistics_of_parts_are_those_of_the_whole(flow):
    """Of the 29 linear layers of a real dump the outputs of q, k and v of layer 1."""
    flow = flow("pt_none")
    parts = [40, 42, 44]
    table = flow.classes.iloc[parts]
    high, low, mean, norm = compute_joint_statistics(flow, parts)
    assert (high, low) == (table["max"].max(), table["min"].min())
    assert mean == pytest.approx(table["mean"].mean())
    assert norm == pytest.approx(float(np.linalg.norm(table["norm"])))
