"""No recorder shows ``~mask`` and ``one_hot``: masks that are read follow from known values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from dumpdiff.graph.mask_sources import find_mask_sources
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.trace import Trace

MASK = np.random.default_rng(4).random((3, 5)) < 0.4


def find_sources(arrays: list[AnyArray], producers: list[int]) -> dict[int, tuple[int, str]]:
    """Return the sources of masks among classes that are tensors of their own, read by op 9."""
    tensors = pd.DataFrame({"shape": [array.shape for array in arrays]})
    trace: Any = SimpleNamespace(tensors=tensors, array=arrays.__getitem__)
    return find_mask_sources(
        cast(Trace, trace),
        np.arange(len(arrays)),
        np.array([array.size for array in arrays]),
        np.array(producers),
        np.full(len(arrays), 9),
        np.array([array.max() == 1 and array.min() == 0 for array in arrays]),
        np.array([array.dtype.kind == "i" for array in arrays]),
    )


def test_the_latest_mask_before_the_reader_is_named() -> None:
    assert find_sources([MASK, MASK, ~MASK[:, None]], [2, 5, -1]) == {2: (1, "opposite")}


@pytest.mark.parametrize("producer", [2, -1], ids=["computed", "given"])
def test_one_hot_codes_follow_from_their_indices(producer: int) -> None:
    indices = np.random.default_rng(3).integers(0, 6, (2, 4))
    codes = np.eye(6)[indices][..., None]
    assert find_sources([indices, codes], [producer, -1]) == {1: (0, "one-hot")}
    assert find_sources([(indices + 1) % 6, codes], [producer, -1]) == {}


@pytest.mark.parametrize(
    ("arrays", "producers"),
    [
        ([MASK, MASK], [2, -1]),
        ([MASK, ~MASK], [9, -1]),
        ([MASK, ~MASK], [2, 3]),
        ([MASK * 2.0, ~MASK], [2, -1]),
        ([np.zeros((2, 3), bool), np.ones((2, 3), bool)], [2, -1]),
    ],
    ids=["equal", "later", "computed", "numbers", "constant"],
)
def test_others_are_no_opposites(arrays: list[AnyArray], producers: list[int]) -> None:
    assert find_sources(arrays, producers) == {}
