"""No recorder shows ``~mask``: the mask that is read is the opposite of a computed one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from dumpdiff.graph.opposite_masks import find_opposite_masks
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.trace import Trace

MASK = np.random.default_rng(4).random((3, 5)) < 0.4


def find_opposites(arrays: list[AnyArray], producers: list[int]) -> dict[int, int]:
    """Return the opposite masks of classes that are tensors of their own, read by op 9."""
    tensors = pd.DataFrame({"shape": [array.shape for array in arrays]})
    trace: Any = SimpleNamespace(tensors=tensors, array=arrays.__getitem__)
    return find_opposite_masks(
        cast(Trace, trace),
        np.arange(len(arrays)),
        np.array([array.size for array in arrays]),
        np.array(producers),
        np.full(len(arrays), 9),
        np.array([array.dtype == np.bool_ for array in arrays]),
    )


def test_the_latest_mask_before_the_reader_is_named() -> None:
    assert find_opposites([MASK, MASK, ~MASK[:, None]], [2, 5, -1]) == {2: 1}


@pytest.mark.parametrize(
    ("arrays", "producers"),
    [
        ([MASK, MASK], [2, -1]),
        ([MASK, ~MASK], [9, -1]),
        ([MASK, ~MASK], [2, 3]),
        ([MASK * 1.0, ~MASK], [2, -1]),
        ([np.zeros((2, 3), bool), np.ones((2, 3), bool)], [2, -1]),
    ],
    ids=["equal", "later", "computed", "numbers", "constant"],
)
def test_others_are_no_opposites(arrays: list[AnyArray], producers: list[int]) -> None:
    assert find_opposites(arrays, producers) == {}
