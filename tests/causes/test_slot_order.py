"""The arrays of a fault case are in the order in which the ops of the finding hold them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from traces import compare_traces, find_tensors_like, replace_arrays

from dumpdiff import Trace
from dumpdiff.causes.comparison_index import ComparisonIndex, ValuePair
from dumpdiff.causes.finding_arrays import load_arrays

QUERY = "Functional.linear.0.forward"


def find_two_shapes(trace: Trace) -> tuple[int, int]:
    """What the linear layer wrote, and the same numbers by head as the attention reads them."""
    rows = find_tensors_like(trace, QUERY, "output.0")
    shapes = trace.tensors["shape"]
    written = next(row for row in rows if trace.tensors["slot_kind"].iat[row] == "output")
    other = next(row for row in rows if len(shapes.iat[row]) == len(shapes.iat[written]) + 1)
    return written, other


def load_pair(trace: Trace, target: Trace, slot_tensors: tuple[int, int]) -> tuple[int, ...]:
    written, other = find_two_shapes(trace)
    index = ComparisonIndex(compare_traces(target, trace))
    values = tuple(int(flow.tensor_class[written]) for flow in index.flows)
    pair = ValuePair((values[0], values[1]), (other, other), slot_tensors=slot_tensors)
    arrays = load_arrays(index, pair)
    assert arrays is not None
    assert arrays[0].shape == arrays[1].shape
    return arrays[1].shape


def test_a_pair_compared_by_heads_is_explained_as_the_op_wrote_it(
    trace: Callable[[str], Trace],
) -> None:
    clean_trace = trace("demo_pytorch")
    written, other = find_two_shapes(clean_trace)
    shapes = clean_trace.tensors["shape"]
    scaled = replace_arrays(clean_trace, QUERY, "output.0", lambda array: array * np.float32(1.25))
    assert load_pair(clean_trace, scaled, (written, written)) == shapes.iat[written]
    assert load_pair(clean_trace, scaled, (-1, -1)) == shapes.iat[other]


def test_an_order_in_which_the_two_differ_otherwise_is_not_used(
    trace: Callable[[str], Trace],
) -> None:
    clean_trace = trace("demo_pytorch")
    written, other = find_two_shapes(clean_trace)
    shapes = clean_trace.tensors["shape"]
    rolled = replace_arrays(
        clean_trace, QUERY, "output.0", lambda array: np.roll(array, 1, axis=-1) * array.ndim
    )
    assert load_pair(clean_trace, rolled, (written, written)) == shapes.iat[other]
