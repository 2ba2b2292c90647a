"""A layout is found if the values prove it, and only then."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.comparison.layouts import find_common_layout

SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple)


def make_random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(SHAPES)
def test_equal_tensors_have_the_same_layout(shape):
    array = make_random(shape)
    layout, t, r = find_common_layout(array, array.copy())
    assert layout == "same"
    np.testing.assert_array_equal(t, r)


@given(SHAPES)
def test_axes_of_length_one_do_not_change_the_layout(shape):
    array = make_random(shape)
    assert find_common_layout(array[None, ..., None], array)[0] == "same"


@given(SHAPES)
def test_the_same_order_in_another_shape_is_a_reshape(shape):
    array = make_random((*shape, 2))
    layout, t, r = find_common_layout(array.reshape(-1), array)
    assert layout == (
        "reshape" if array.size > 2 and sum(n > 1 for n in array.shape) > 1 else "same"
    )
    np.testing.assert_array_equal(t.ravel(), r.ravel())


@given(SHAPES, st.data())
def test_permuted_axes_are_found_and_undone(shape, data):
    array = make_random(shape)
    axes = data.draw(st.sampled_from(list(permutations(range(array.ndim)))))
    layout, t, r = find_common_layout(array.transpose(axes), array)
    np.testing.assert_array_equal(t.ravel(), r.ravel())
    if np.array_equal(array.transpose(axes).ravel(), array.ravel()):
        assert "transpose" not in layout
    else:
        assert layout.startswith("transpose(")


@given(SHAPES, st.data())
def test_the_name_is_the_transposition_of_the_target(shape, data):
    array = make_random(shape)
    axes = data.draw(st.sampled_from(list(permutations(range(array.ndim)))))
    target = array.transpose(axes)
    layout, t, _ = find_common_layout(target, array)
    if layout.startswith("transpose("):
        named = tuple(
            int(axis) for axis in layout.removeprefix("transpose(").removesuffix(")").split(",")
        )
        np.testing.assert_array_equal(target.transpose(named), t)


def test_a_flat_tensor_in_the_order_of_permuted_axes_is_found_from_the_other_side():
    array = make_random((3, 4, 5))
    layout, t, r = find_common_layout(array.transpose(2, 0, 1).reshape(-1), array)
    assert layout == "reference transpose(2,0,1)"
    np.testing.assert_array_equal(t.ravel(), r.ravel())


def test_a_layout_is_found_through_rounding_noise():
    array = make_random((8, 16))
    noisy = array.T + make_random((16, 8), seed=1) * np.float32(1e-3)
    assert find_common_layout(noisy, array)[0] == "transpose(1,0)"


def test_a_layout_is_found_in_tensors_larger_than_the_sample():
    array = make_random((300, 4, 100))
    layout, t, r = find_common_layout(array.transpose(1, 0, 2), array)
    assert layout == "transpose(1,0,2)"
    np.testing.assert_array_equal(t, r)


def test_unrelated_values_keep_their_layout():
    layout, t, r = find_common_layout(make_random((4, 6)), make_random((4, 6), seed=1))
    assert layout == "same"
    assert t.shape == r.shape == (4, 6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nonfinite_element_does_not_hide_the_layout(value):
    array = make_random((6, 8))
    array[0, 0] = value
    assert find_common_layout(array.T, array)[0] == "transpose(1,0)"
