"""No recorder shows ``torch.cat``: results that no op reads are blocks of a later value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from dumpdiff.graph.joined_blocks import find_joined_blocks
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.trace import Trace

FIRST, SECOND, GIVEN = (
    np.random.default_rng(seed).standard_normal((2, width, 4))
    for seed, width in enumerate((3, 1, 5))
)


def find_blocks(
    arrays: list[AnyArray], producers: list[int], unread: list[int]
) -> dict[int, tuple[int, ...]]:
    """Return the parts of the last of classes that are tensors of their own, read by op 200."""
    tensors = pd.DataFrame({"shape": [array.shape for array in arrays]})
    trace: Any = SimpleNamespace(tensors=tensors, array=arrays.__getitem__)
    numbers = np.arange(len(arrays))
    return find_joined_blocks(
        cast(Trace, trace),
        numbers,
        [array.shape for array in arrays],
        np.array(producers),
        np.full(len(arrays), 200),
        np.isin(numbers, unread),
        numbers == len(arrays) - 1,
    )


def test_parts_are_named_in_the_order_of_their_blocks() -> None:
    whole = np.concatenate([GIVEN, SECOND, FIRST], axis=1)
    assert find_blocks([FIRST, SECOND, whole], [150, 160, -1], [0]) == {2: (1, 0)}


@pytest.mark.parametrize(
    ("whole", "producers", "unread"),
    [
        (np.concatenate([GIVEN, FIRST], axis=1), [150, 160, -1], []),
        (np.concatenate([GIVEN, FIRST], axis=1), [20, 160, -1], [0, 1]),
        (np.concatenate([GIVEN, FIRST], axis=1), [210, 160, -1], [0, 1]),
        (np.concatenate([FIRST, FIRST], axis=1), [150, 160, -1], [0, 1]),
        (np.concatenate([GIVEN, FIRST[:, ::-1]], axis=1), [150, 160, -1], [0, 1]),
    ],
    ids=["read elsewhere", "long before", "later", "repeated", "reversed"],
)
def test_others_are_no_parts(whole: AnyArray, producers: list[int], unread: list[int]) -> None:
    assert find_blocks([FIRST, SECOND, whole], producers, unread) == {}


def test_equal_numbers_are_found_by_chance() -> None:
    zeros = np.zeros((2, 3, 4))
    assert find_blocks([zeros, np.concatenate([GIVEN, zeros], axis=1)], [150, -1], [0]) == {}
