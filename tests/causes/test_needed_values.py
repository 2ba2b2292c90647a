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
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table

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


def make_unrecorded_cut() -> Trace:
    """Return statistics of a product of which an op that is not recorded cut the columns 6 to 9.

    Between the product and what reads the columns run ops on other values of other widths.
    """
    source = np.random.default_rng(2)
    given, weight, product, columns, scale = (
        source.standard_normal(shape) for shape in ((5, 8), (10, 8), (5, 10), (5, 4), (5, 4))
    )
    columns[:] = product[:, 6:]
    others = [source.uniform(-9, 9, (7, 3)) for _ in range(6)]
    tensors = [
        (0, "input.0", given, ""),
        (0, "input.1", weight, "weight"),
        (0, "output.0", product, ""),
        *((1 + number, "input.0", other, "") for number, other in enumerate(others[:-1])),
        *((1 + number, "output.0", other, "") for number, other in enumerate(others[1:])),
        (6, "input.0", columns, ""),
        (6, "input.1", scale, ""),
        (6, "output.0", columns * scale, ""),
    ]
    names = ["Functional.linear.0.forward"]
    names += [f"Functional.tanh.{number}.forward" for number in range(5)]
    names += ["Tensor.__mul__.0.forward"]
    ops = build_op_table({"name": names, "kind": [name.rsplit(".", 2)[0] for name in names]})
    arrays = [array for _, _, array, _ in tensors]
    table = build_tensor_table(
        {
            "op": [op for op, *_ in tensors],
            "slot": [slot for _, slot, *_ in tensors],
            "slot_kind": [slot.partition(".")[0] for _, slot, *_ in tensors],
            "dtype": ["float32"] * len(tensors),
            "shape": [array.shape for array in arrays],
            "size": [array.size for array in arrays],
            "max": [array.max() for array in arrays],
            "min": [array.min() for array in arrays],
            "mean": [array.mean() for array in arrays],
            "norm": [np.linalg.norm(array) for array in arrays],
            "parameter": [parameter for *_, parameter in tensors],
        }
    )
    return Trace(Source("/d", "msprobe", "", "pytorch"), ops, table)


def test_what_an_unrecorded_op_may_have_cut_a_value_from_is_asked_for() -> None:
    """Statistics do not show of which value another one is a part."""
    cut = make_unrecorded_cut()
    comparison = compare_traces(cut, cut)
    flow = comparison.alignment.reference
    asked = list_asked_values(comparison, make_finding("Tensor.__mul__.0.forward", "output.0"))
    columns = find_value(flow, "Tensor.__mul__.0.forward", "input.0")
    product = find_value(flow, "Functional.linear.0.forward", "output.0")
    assert flow.producers[columns] < 0
    assert columns in asked
    assert product in asked
