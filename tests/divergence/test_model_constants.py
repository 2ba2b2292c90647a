"""Graph inputs that differ: weights that were loaded, or constants of the model."""

from collections.abc import Callable

import pytest
from traces import (
    edit_tensors,
    find_dependents,
    find_tensors_like,
    locate_divergence,
    scale_tensors,
    select_ops,
)

from dumpdiff.model.trace import Trace

#: First consumers of the cosine and the sine table of ptdbg's dump, which all four layers read.
COSINE, SINE = "Tensor.__mul__.2.forward", "Tensor.__mul__.3.forward"
NORM = "Tensor.__mul__.7.forward"

Traces = Callable[[str], Trace]


def change_input(clean_trace: Trace, consumer: str, slot: str = "input.1") -> Trace:
    """Scale an input of an op, and everything that is computed from it."""
    return scale_tensors(
        clean_trace,
        {*find_tensors_like(clean_trace, consumer, slot), *find_dependents(clean_trace, consumer)},
        1.1,
    )


def locate_kind_and_title(target: Trace, reference: Trace) -> tuple[str, str]:
    first = locate_divergence(target, reference).first_divergence
    assert first is not None
    return first.kind, first.title


@pytest.mark.parametrize("table", [COSINE, SINE])
def test_nothing_goes_back_to_a_table_of_a_record_without_names(trace: Traces, table: str) -> None:
    clean_trace = trace("v6.0_api_stack_summary")
    kind, title = locate_kind_and_title(change_input(clean_trace, table), clean_trace)
    assert kind == "constant"
    assert title.startswith("a constant table differs, read by ")


def test_a_gradient_goes_back_to_a_norm_weight_without_a_name(trace: Traces) -> None:
    clean_trace = trace("v6.0_api_stack_summary")
    kind, title = locate_kind_and_title(change_input(clean_trace, NORM), clean_trace)
    assert kind == "parameter"
    assert title.startswith("a parameter without a name differs, read by ")


def test_what_a_record_does_not_name_among_its_parameters_is_none(trace: Traces) -> None:
    clean_trace = trace("pt_none")
    consumer = "Tensor.__add__.0.forward"
    changed_trace = edit_tensors(
        change_input(clean_trace, consumer),
        find_tensors_like(clean_trace, consumer, "input.1"),
        mean=-2500.0,  # a quarter of the elements is masked; it was half of them
        norm=1.6e5,
    )
    assert locate_kind_and_title(changed_trace, clean_trace)[0] == "constant"


def test_a_record_that_names_few_of_its_parameters_says_nothing_of_the_others(
    trace: Traces,
) -> None:
    clean_trace = trace("v6.0_api_stack_summary")
    named_trace = edit_tensors(
        clean_trace,
        find_tensors_like(clean_trace, "Functional.linear.0.forward", "input.1"),
        parameter="layers.0.wq.weight",
    )
    assert (
        locate_kind_and_title(
            change_input(named_trace, "Functional.linear.18.forward"), named_trace
        )[0]
        == "parameter"
    )


def test_without_a_backward_pass_and_names_a_leaf_is_a_parameter(trace: Traces) -> None:
    clean_trace = trace("v6.0_api_stack_summary")
    forward = [op for op, phase in enumerate(clean_trace.ops["phase"]) if phase == "forward"]
    assert (
        locate_kind_and_title(
            change_input(select_ops(clean_trace, forward), COSINE), select_ops(clean_trace, forward)
        )[0]
        == "parameter"
    )
