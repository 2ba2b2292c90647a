"""Scalar arguments: a wrong epsilon or divisor is named."""

import pytest
from traces import align_traces, edit_tensors, find_op, find_tensor, load_shipped_rules

from dumpdiff.comparison.scalars import (
    Scalar,
    collect_scalars,
    find_scalar_differences,
    pair_different_scalars,
)

DIVISION = "Tensor.__truediv__.1.forward"
NORM = "Functional.layer_norm.3.forward"


def with_scalar(trace, name, slot, number):
    return edit_tensors(
        trace, find_tensor(trace, name, slot), max=number, min=number, mean=number, norm=abs(number)
    )


def find_differences(target, reference):
    alignment = align_traces(target, reference)
    rules = load_shipped_rules()
    scalars = [collect_scalars(flow, rules) for flow in (alignment.target, alignment.reference)]
    return list(find_scalar_differences(alignment, scalars).itertuples(index=False, name=None))


def test_two_equal_runs_have_no_difference(trace):
    assert find_differences(trace("pt_none"), trace("pt_none")) == []


@pytest.mark.parametrize(
    ("name", "slot", "argument", "target_value", "reference_value"),
    [(DIVISION, "input.1", "", 16.0, 4.0), (NORM, "input.4", "epsilon", 1e-2, 1e-5)],
)
def test_a_wrong_scalar_is_reported_with_its_op_and_both_values(
    trace, name, slot, argument, target_value, reference_value
):
    clean_trace = trace("pt_none")
    number = find_op(clean_trace, name)
    assert find_differences(with_scalar(clean_trace, name, slot, target_value), clean_trace) == [
        (number, number, argument, target_value, pytest.approx(reference_value))
    ]


def name_scalars(*pairs):
    return [Scalar(argument, number) for argument, number in pairs]


def test_arguments_in_another_order_are_compared_by_name():
    """MindSpore's batch norm takes (epsilon, momentum), PyTorch's (momentum, epsilon)."""
    target = name_scalars(("epsilon", 1e-3), ("momentum", 0.9))
    reference = name_scalars(("momentum", 0.1), ("epsilon", 1e-5))
    assert pair_different_scalars(target, reference) == [
        (Scalar("epsilon", 1e-3), Scalar("epsilon", 1e-5)),
        (Scalar("momentum", 0.9), Scalar("momentum", 0.1)),
    ]
    assert pair_different_scalars(target, name_scalars(("p", 0.5))) == []


def test_without_names_the_only_number_left_on_each_side_differs():
    target = name_scalars(("", 1e-3), ("", 0.1))
    assert pair_different_scalars(target, name_scalars(("", 0.1), ("", 1e-5))) == [
        (Scalar("", 1e-3), Scalar("", 1e-5))
    ]
    assert pair_different_scalars(target, name_scalars(("", 0.9), ("", 1e-5))) == []
    assert pair_different_scalars(target, name_scalars(("", 1e-3))) == []


def test_the_batch_norms_of_both_frameworks_have_named_arguments(trace):
    """Graph mode records (.., is_training, epsilon, momentum), PyTorch (.., momentum, eps)."""
    alignment = align_traces(trace("ms_update_assign_sub"), trace("pt_update_sgd_momentum"))
    rules = load_shipped_rules()
    scalars_of_sides = [
        collect_scalars(flow, rules) for flow in (alignment.target, alignment.reference)
    ]
    named = []
    for scalars_of_op in scalars_of_sides:
        (scalars,) = [scalars for scalars in scalars_of_op.values() if len(scalars) == 2]
        named.append({scalar.argument: pytest.approx(scalar.number) for scalar in scalars})
    assert named == [{"epsilon": 1e-5, "momentum": 0.1}, {"epsilon": 1e-5, "momentum": 0.9}]
    (difference,) = [
        row
        for row in find_scalar_differences(alignment, scalars_of_sides).itertuples()
        if row.argument
    ]
    assert difference.argument == "momentum"
    assert (difference.target, difference.reference) == (pytest.approx(0.1), pytest.approx(0.9))


def test_rounding_to_float32_is_no_difference(trace):
    clean_trace = trace("pt_none")
    assert (
        find_differences(with_scalar(clean_trace, NORM, "input.4", 1e-5 * (1 + 3e-8)), clean_trace)
        == []
    )


def test_integers_are_not_compared(trace):
    """Axes and shapes: frameworks count them from the other end, or write them in another call."""
    clean_trace = trace("pt_none")
    assert (
        find_differences(
            with_scalar(clean_trace, "Functional.softmax.1.forward", "input.dim", 3.0), clean_trace
        )
        == []
    )


def test_calls_with_another_number_of_scalars_are_not_compared(trace):
    clean_trace = trace("pt_none")
    epsilon = find_tensor(clean_trace, NORM, "input.4")
    assert (
        find_differences(edit_tensors(clean_trace, epsilon, dtype="int", max=2.0), clean_trace)
        == []
    )


def test_the_same_formula_in_two_frameworks_has_no_difference(trace):
    assert find_differences(trace("ms_mf_none"), trace("pt_none")) == []


def test_a_fault_of_a_real_pair_is_found(trace):
    """Scores of layer 1 multiplied by 1/16 in place of 1/4."""
    ((op_t, op_r, _, factor, expected_factor),) = find_differences(
        trace("ms_mf_attn_scale"), trace("ms_mf_none")
    )
    assert (factor, expected_factor) == (1 / 16, 1 / 4)
    assert op_t == op_r == find_op(trace("ms_mf_none"), "Tensor.__mul__.2.forward")
