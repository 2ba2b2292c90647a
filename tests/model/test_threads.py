"""Work in threads: every result once, small items first, errors not lost."""

from __future__ import annotations

import threading

import pytest

from dumpdiff.model.threads import map_in_threads

SMALL, LARGE = 1, 1 << 20  #: elements


def square(number: int) -> int:
    return number * number


@pytest.mark.parametrize("elements", [[SMALL] * 4, [LARGE] * 4], ids=["small", "large"])
def test_results_of_equal_items_are_in_order(elements: list[int]) -> None:
    assert list(map_in_threads(square, [3, 1, 4, 1], elements)) == [9, 1, 16, 1]


def test_small_items_come_first() -> None:
    elements = [LARGE, SMALL, LARGE, SMALL]
    assert list(map_in_threads(square, [1, 2, 3, 4], elements)) == [4, 16, 1, 9]


def test_only_large_items_leave_the_thread_of_the_caller() -> None:
    def is_in_caller(_: int) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert list(map_in_threads(is_in_caller, [1, 2], [SMALL, LARGE])) == [True, False]


def test_no_items_are_no_results() -> None:
    assert list(map_in_threads(square, [], [])) == []


@pytest.mark.parametrize("elements", [SMALL, LARGE])
def test_an_error_reaches_the_caller(elements: int) -> None:
    def fail(item: int) -> int:
        raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 7"):
        list(map_in_threads(fail, [7], [elements]))


def test_items_without_a_number_of_elements_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(map_in_threads(square, [1, 2], [SMALL]))
