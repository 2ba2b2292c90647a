"""One layout: a rank of both runs holds parameters of the same sizes, and as much of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dumpdiff import readers
from dumpdiff.model.trace import Trace
from dumpdiff.sharding import has_equal_layout

Dumps = Callable[[str], Path]


def read_first_rank(dump: Dumps, name: str) -> Trace:
    parts = sorted(readers.find_parts(dump(name)), key=lambda part: part.rank or 0)
    return readers.read_part(parts[0])


@pytest.mark.parametrize(
    ("target", "reference", "is_equal"),
    [
        ("parallel_pt_tp2", "parallel_pt_tp2_again", True),
        ("parallel_ms_tp2", "parallel_pt_tp2", True),  # MindSpore names states of the optimizer too
        ("parallel_pt_tp2", "parallel_pt_tp1", False),
        ("parallel_pt_tp1", "parallel_ms_tp2", False),
    ],
)
def test_sizes_of_parameters_tell_layouts_apart(
    dump: Dumps, target: str, reference: str, is_equal: bool
) -> None:
    traces = [read_first_rank(dump, name) for name in (target, reference)]
    assert has_equal_layout(*traces) is is_equal


def test_another_part_of_the_batch_is_another_layout(dump: Dumps) -> None:
    """Context- and data-parallel ranks hold the same parameters."""
    trace = read_first_rank(dump, "parallel_pt_tp2")
    shapes = trace.tensors["shape"].tolist()
    longer = [
        (1, shape[0] * shape[1]) if shape is not None and len(shape) == 2 else shape
        for shape in shapes
    ]
    other = replace(trace, tensors=trace.tensors.assign(shape=pd.Series(longer, dtype=object)))
    assert has_equal_layout(trace, trace)
    assert not has_equal_layout(trace, other)
