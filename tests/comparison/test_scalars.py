"""Scalar arguments: a wrong epsilon or divisor is named."""

import pytest
from traces import align_traces, edit_tensors, find_op, find_tensor

from dumpdiff.comparison.scalars import find_scalar_differences

DIVISION = "Tensor.__truediv__.1.forward"
NORM = "Functional.layer_norm.3.forward"


def with_scalar(trace, name, slot, number):
    return edit_tensors(
        trace, find_tensor(trace, name, slot), max=number, min=number, mean=number, norm=abs(number)
    )


def differences(target, reference):
    return list(find_scalar_differences(align_traces(target, reference)).itertuples(index=False, name=None))


def test_two_equal_runs_have_none(trace):
    assert differences(trace("pt_none"), trace("pt_none")) == []


@pytest.mark.parametrize(
    ("name", "slot", "ours", "theirs"),
    [(DIVISION, "input.1", 16.0, 4.0), (NORM, "input.4", 1e-2, 1e-5)],
)
def test_a_wrong_one_is_said_with_its_op_and_both_values(trace, name, slot, ours, theirs):
    whole = trace("pt_none")
    number = find_op(whole, name)
    assert differences(with_scalar(whole, name, slot, ours), whole) == [
        (number, number, ours, pytest.approx(theirs))
    ]


def test_rounding_to_float32_is_no_difference(trace):
    whole = trace("pt_none")
    assert differences(with_scalar(whole, NORM, "input.4", 1e-5 * (1 + 3e-8)), whole) == []


def test_integers_are_not_compared(trace):
    """Axes and shapes: frameworks count them from the other end, or write them in another call."""
    whole = trace("pt_none")
    assert (
        differences(with_scalar(whole, "Functional.softmax.1.forward", "input.dim", 3.0), whole)
        == []
    )


def test_calls_with_another_number_of_scalars_are_not_compared(trace):
    whole = trace("pt_none")
    epsilon = find_tensor(whole, NORM, "input.4")
    assert differences(edit_tensors(whole, epsilon, dtype="int", max=2.0), whole) == []


def test_the_same_formula_in_two_frameworks_has_none(trace):
    assert differences(trace("ms_mf_none"), trace("pt_none")) == []


def test_a_fault_of_a_real_pair_is_seen(trace):
    """Scores of layer 1 multiplied by 1/16 in place of 1/4."""
    ((ours, theirs, factor, right),) = differences(trace("ms_mf_attn_scale"), trace("ms_mf_none"))
    assert (factor, right) == (1 / 16, 1 / 4)
    assert ours == theirs == find_op(trace("ms_mf_none"), "Tensor.__mul__.2.forward")
