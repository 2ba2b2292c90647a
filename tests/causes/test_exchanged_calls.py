"""Weights of several calls in another order: each multiplies another call's input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from traces import compare_traces, edit_tensors, find_tensor, record_calls

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.comparison_index import ComparisonIndex
from dumpdiff.causes.exchanged_weights import count_exchanged_calls
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES
from dumpdiff.model.trace import Trace

from .fault_cases import make_fault_case, make_operand
from .test_composites import make_region

RNG = np.random.default_rng(29)
INPUTS = RNG.standard_normal((3, 4, 8)).astype(np.float32)
WEIGHTS = RNG.standard_normal((3, 8, 8)).astype(np.float32)


def record(*order: int) -> Trace:
    """Return the trace of three linear calls, with the weights in an order."""
    calls = [
        ("Functional.linear", (x, WEIGHTS[number]), x @ WEIGHTS[number].T)
        for x, number in zip(INPUTS, order, strict=True)
    ]
    trace = record_calls(*calls)
    for call, number in enumerate(order):
        row = find_tensor(trace, f"call.{call}", "input.1")
        trace = edit_tensors(trace, row, parameter=f"networks.{number}.weight")
    return trace


@pytest.mark.parametrize(("order", "counts"), [
    ((0, 1, 2), [0, 0, 0]),
    ((1, 0, 2), [2, 2, 0]),
    ((2, 0, 1), [3, 3, 3]),
    ((0, 0, 1), [0, 0, 0]),
])  # fmt: skip
def test_the_calls_of_a_permutation_are_counted(order: tuple[int, ...], counts: list[int]) -> None:
    """A weight that is used twice is another fault."""
    index = ComparisonIndex(compare_traces(record(*order), record(0, 1, 2)))
    assert [count_exchanged_calls(index, 1, f"call.{call}") for call in range(3)] == counts


def test_the_weights_are_named_not_the_input() -> None:
    region = make_region([("matmul", [("x", INPUTS[0]), ("networks.0.weight", WEIGHTS[0])])])
    faulty = region.steps[0].compute([INPUTS[1], WEIGHTS[0]])
    case = make_fault_case(faulty, region.steps[0].output, {}, scope="networks.0")
    case = replace(
        case,
        load_region=lambda: region,
        find_other_values=lambda _: (make_operand("y", INPUTS[1]),),
        count_exchanged_calls=lambda _: 2,
    )
    cause = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes[0]
    assert cause.name == "weight-swapped"
    assert "the weights of 2 calls exchanged: networks.0.weight for y" in cause.text
    assert "the reference has it for x" in cause.text
