"""What a narrowed dump is asked for, and what is known without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from results import FINDING
from traces import compare_traces, edit_tensors, find_value

from dumpdiff.causes import iterate_needed_values
from dumpdiff.causes.comparison_index import ComparisonIndex
from dumpdiff.causes.operands import find_other_values, list_consumers
from dumpdiff.comparison import Comparison
from dumpdiff.model.finding import Finding
from dumpdiff.model.trace import Trace

GATE, LAST_GATE, RESIDUAL = (
    "Functional.linear.4.forward",
    "Functional.linear.11.forward",
    "Tensor.__add__.4.forward",
)
REFERENCE = 1


@pytest.fixture(scope="module")
def clean_trace(trace: Callable[[str], Trace]) -> Trace:
    return trace("demo_pytorch")


@pytest.fixture(scope="module")
def comparison(clean_trace: Trace) -> Comparison:
    return compare_traces(clean_trace, clean_trace)


@pytest.fixture(scope="module")
def statistics(clean_trace: Trace) -> ComparisonIndex:
    """The same without any whole tensor."""
    bare = edit_tensors(clean_trace, range(len(clean_trace.tensors)), file="")
    return ComparisonIndex(compare_traces(bare, bare))


def make_finding(op: str, slot: str, **changes: str) -> Finding:
    return replace(FINDING, target_ops=(op,), reference_ops=(op,), slots=((slot, slot),), **changes)


def list_asked_values(comparison: Comparison, finding: Finding) -> list[int]:
    needed_values = iterate_needed_values(comparison, finding)
    return [value for side, value in needed_values if side == REFERENCE]


def test_the_parameters_of_other_modules_are_asked_for_right_after_one_that_differs(
    comparison: Comparison,
) -> None:
    """One of them may be in its place; the nearest ones come first."""
    flow = comparison.alignment.reference
    weight = find_value(flow, GATE, "input.1")
    names = flow.list_column("parameter")
    same_size = [
        value
        for value in np.flatnonzero(flow.sizes == flow.sizes[weight]).tolist()
        if names[value] and value != weight
    ]
    asked = list_asked_values(comparison, make_finding(GATE, "input.1", kind="parameter"))
    assert asked[0] == weight
    others = asked[1 : 1 + min(len(same_size), 8)]
    assert others
    assert set(others) <= set(same_size)


def test_values_of_the_size_of_what_an_operator_reads_are_asked_for(
    comparison: Comparison,
) -> None:
    """The operator may have read one of them by mistake; its output may have another size."""
    index = ComparisonIndex(comparison)
    flow = comparison.alignment.reference
    source = find_value(flow, GATE, "input.0")
    output = find_value(flow, GATE, "output.0")
    shape = tuple(flow.tensors["shape"].iat[int(flow.list_column("tensor")[source])])
    candidates = {item.value for item in find_other_values(index, REFERENCE, output, shape)}
    assert flow.sizes[source] != flow.sizes[output]
    asked = set(list_asked_values(comparison, make_finding(GATE, "output.0")))
    assert len(candidates & asked) >= 3


def test_what_a_value_is_for_is_known_by_statistics_alone(statistics: ComparisonIndex) -> None:
    """A branch is added to another computed value, and not to a parameter."""
    flow = statistics.flows[REFERENCE]
    branch = find_value(flow, RESIDUAL, "input.1")
    ((kind, (stream,)),) = list_consumers(statistics, REFERENCE, branch)
    assert (kind, stream.parameter) == ("add", "")
    assert int(np.prod(stream.shape)) == flow.sizes[branch]
    assert np.isnan(stream.array).all()


def test_values_without_whole_tensors_take_no_place_among_those_that_are_tried(
    clean_trace: Trace,
) -> None:
    """A narrowed dump holds few of the values that may have been read by mistake."""
    flow = compare_traces(clean_trace, clean_trace).alignment.reference
    first = find_value(flow, "Functional.linear.0.forward", "input.0")
    kept_rows = np.flatnonzero(flow.tensor_class == first)
    rows = np.setdiff1d(np.arange(len(clean_trace.tensors)), kept_rows)
    narrowed = edit_tensors(clean_trace, rows.tolist(), file="")
    index = ComparisonIndex(compare_traces(narrowed, narrowed))
    flow = index.flows[REFERENCE]
    last = find_value(flow, LAST_GATE, "output.0")
    shape = tuple(flow.tensors["shape"].iat[int(kept_rows[0])])
    found = find_other_values(index, REFERENCE, last, shape)
    assert [operand.value for operand in found] == [int(flow.tensor_class[kept_rows[0]])]
