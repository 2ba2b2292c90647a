"""A value that another process left in shared memory is the same value."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dumpdiff.model.arrays import view_numbers
from dumpdiff.model.shared_memory import create_shared_memory, read_value, write_value

NAMES = [f"layer.{number}" for number in range(300)]


def hand_over(value: Any) -> Any:
    """Return the value after it was written and read."""
    descriptor = create_shared_memory()
    try:
        write_value(descriptor, value)
        return read_value(descriptor)
    finally:
        os.close(descriptor)


def test_a_table_keeps_its_names_numbers_and_shapes():
    shapes = np.fromiter([(2, 3), None, ()] * 100, dtype=object, count=300)
    table = pd.DataFrame({"name": NAMES, "size": range(300), "shape": shapes, "mean": 0.5})
    pd.testing.assert_frame_equal(hand_over(table), table)


@pytest.mark.parametrize("n_different", [1, 2, 255, 256, 257, 70_000])
def test_objects_are_told_apart_however_many_differ(n_different: int):
    objects = np.array([str(number) for number in range(n_different)], dtype=object)
    repeated = np.tile(objects, 2)
    assert hand_over(repeated).tolist() == repeated.tolist()


@pytest.mark.parametrize(
    "columns", [slice(None), slice(None, None, 2)], ids=["all", "every second"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_objects_keep_their_places_however_they_lie_in_memory(columns: slice, order: Any):
    array = np.array(NAMES, dtype=object).reshape((3, 100), order=order)[:, columns]
    copy = hand_over(array)
    assert copy.shape == array.shape
    assert copy.tolist() == array.tolist()


def test_a_view_for_loops_stays_one():
    copy = hand_over(view_numbers(np.arange(5.0)[::2]))
    assert isinstance(copy, memoryview)
    assert list(copy) == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("element", [7.5, "same", None])
def test_a_repeated_element_is_sent_once(element: Any):
    copy = hand_over(np.broadcast_to(np.array(element, dtype=object), (1, 1000)))
    assert copy.strides == (0, 0)
    assert copy.tolist() == [[element] * 1000]


def test_one_string_stays_one_string():
    names = np.array(NAMES, dtype=object)
    first, second = hand_over([names, np.tile(names, 2)])
    assert first[7] is second[7] is second[307]


def test_small_and_empty_arrays_are_handed_over_too():
    arrays = [np.array([], dtype=object), np.zeros(0), np.array(["one", None], dtype=object)]
    assert [array.tolist() for array in hand_over(arrays)] == [[], [], ["one", None]]


def test_what_was_read_may_be_changed():
    copy = hand_over(np.arange(1000))
    copy[3] = -1
    assert copy[:5].tolist() == [0, 1, 2, -1, 4]
