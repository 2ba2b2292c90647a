"""A weight that agrees only transposed is a difference unless its operator transposes it back."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    find_dependents,
    find_tensor,
    locate_divergence,
    replace_arrays,
    scale_tensors,
)

#: The output projection of the attention of layer 1; its weight is square.
PROJECTION = "Functional.linear.10.forward"
WEIGHT = "input.1"


def transpose_weights(trace, *names):
    for name in names:
        trace = replace_arrays(trace, name, WEIGHT, lambda array: np.ascontiguousarray(array.T))
    return trace


def change_results(trace, name, factor):
    """Return the trace with other numbers in the result of an op and in all that depends on it."""
    rows = find_dependents(trace, name)
    files = set(trace.tensors["file"].iloc[rows]) - {""}
    load = trace.load
    scaled = scale_tensors(trace, rows, factor)
    return replace(scaled, load=lambda file: factor * load(file) if file in files else load(file))


@pytest.fixture
def clean(trace):
    clean_trace = trace("v6.0_api_stack")
    assert is_square(clean_trace, PROJECTION)
    return clean_trace


@pytest.fixture
def faulty(clean):
    return change_results(transpose_weights(clean, PROJECTION), PROJECTION, 1.5)


def is_square(trace, name):
    shape = trace.tensors["shape"].iat[find_tensor(trace, name, WEIGHT)]
    return shape[0] == shape[1]


def test_the_weight_is_the_place_if_its_result_diverges(trace, faulty):
    """Graph mode against PyTorch: all other weights of products are stored alike."""
    first = locate_divergence(trace("ms_graph"), faulty).findings[0]
    assert first.kind == "parameter"
    assert first.reference_ops == (PROJECTION,)
    assert first.target_ops[0].endswith("1-Block/attention-Attention/wo-Dense/MatMul-op0")
    assert first.metrics["relative_l2"] == pytest.approx(np.sqrt(2), rel=0.1)


def test_both_directions_give_the_same_place(trace, faulty):
    first = locate_divergence(faulty, trace("ms_graph")).findings[0]
    assert (first.kind, first.target_ops) == ("parameter", (PROJECTION,))


def test_a_weight_that_the_operator_transposes_back_agrees(trace, clean):
    result = locate_divergence(trace("ms_graph"), transpose_weights(clean, PROJECTION))
    assert result.verdict == "aligned"
    is_weight = (result.pairs["reference_op"] == PROJECTION) & (
        result.pairs["reference_slot"] == WEIGHT
    )
    assert set(result.pairs["layout"][is_weight]) == {"transpose(1,0)"}


def test_where_all_weights_are_stored_transposed_the_operator_is_the_place(trace, clean):
    """The results of the others agree, so the operators undo the layout."""
    others = [f"Functional.linear.{number}.forward" for number in (3, 17)]
    assert all(is_square(clean, name) for name in others)
    faulty = change_results(transpose_weights(clean, PROJECTION, *others), PROJECTION, 1.5)
    first = locate_divergence(trace("ms_graph"), faulty).findings[0]
    assert first.kind == "introduced"
    assert first.reference_ops == (PROJECTION,)
