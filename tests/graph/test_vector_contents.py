"""The two ends of the edges of a recorded graph network, which has each edge in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import dumpdiff
from dumpdiff.graph import Flow


def test_sources_and_targets_are_two_values(flow: Callable[[str], Flow]) -> None:
    edges = flow("ms_edges")
    is_edges = ((edges.tensors["size"] == 56) & (edges.tensors["max"] == 29)).to_numpy()
    rows = np.flatnonzero(is_edges & (edges.tensor_class >= 0))
    assert edges.tensors.loc[rows, ["min", "mean", "norm"]].drop_duplicates().shape[0] == 1
    contents = {edges.trace.array(int(row)).astype(np.int64).tobytes() for row in rows}
    assert len(contents) == len(set(edges.tensor_class[rows].tolist())) == 2


def test_a_sound_pair_with_such_edges_is_aligned(dump: Callable[[str], Path]) -> None:
    folders = dump("ms_edges"), dump("pt_edges")
    assert dumpdiff.align(*folders).verdict == "aligned"
    assert dumpdiff.align(*reversed(folders)).verdict == "aligned"
