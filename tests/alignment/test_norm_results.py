"""The result of a norm is known by its shift, whatever the values and however it is written."""

import numpy as np
import pytest
from traces import find_value, record_calls, start_matching

from dumpdiff.alignment.norm_results import pair_norm_results

X, OTHER = np.random.default_rng(4).standard_normal((2, 8, 5))
SCALE, SHIFT = np.random.default_rng(5).standard_normal((2, 5))


def normalize(x):
    return (x - x.mean(0)) / x.std(0)


def record_norm(kind, x, parameters):
    """A norm in one op, of what another op computes."""
    result = normalize(x) * SCALE + sum(parameters[1:])
    return record_calls(("square", [x], np.square(x)), (kind, [np.square(x), *parameters], result))


def record_written_norm(x, *, n_additions=1):
    """A norm and its scale and shift in several ops."""
    scaled = normalize(x) * SCALE
    products = [("batch_norm", [x], normalize(x)), ("mul", [normalize(x), SCALE], scaled)]
    factors = range(1, n_additions + 1)
    return record_calls(
        *products, *(("add", [n * scaled, SHIFT], n * scaled + SHIFT) for n in factors)
    )


def match(target, reference, target_call, reference_call):
    """A matching in which only the shifts are partners."""
    matching = start_matching(target, reference)
    shifts = [
        find_value(flow, name, slot)
        for flow, (name, slot) in (
            (matching.target, target_call), (matching.reference, reference_call)
        )
    ]  # fmt: skip
    matching.pair(*shifts, "parameter", 0.95)
    return matching


def test_a_written_norm_ends_with_the_addition_of_its_shift():
    norm = record_norm("batch_norm", OTHER, [SCALE, SHIFT])
    matching = match(record_written_norm(X), norm, ("call.2", "input.1"), ("call.1", "input.2"))
    assert pair_norm_results(matching)
    result = find_value(matching.target, "call.2", "output.0")
    assert matching.classes_t[result] == find_value(matching.reference, "call.1", "output.0")


def test_a_shift_that_is_added_twice_shows_no_result():
    norm = record_norm("batch_norm", OTHER, [SCALE, SHIFT])
    written = record_written_norm(X, n_additions=2)
    assert not pair_norm_results(match(written, norm, ("call.2", "input.1"), ("call.1", "input.2")))


@pytest.mark.parametrize(("parameters", "is_paired"), [([SCALE], True), ([SCALE, SHIFT], False)])
def test_a_scale_is_the_last_parameter_of_a_norm_without_a_shift(parameters, is_paired):
    norm = record_norm("rms_norm", OTHER, parameters)
    written = record_written_norm(X, n_additions=0)
    matching = match(written, norm, ("call.1", "input.1"), ("call.1", "input.1"))
    assert pair_norm_results(matching) == is_paired
