"""What nothing computed and differs: a weight that was loaded, or a constant that follows from the model."""

from collections.abc import Callable

import pytest
from traces import find_dependents, edit_tensors, find_tensors_like, locate_divergence, select_ops, scale_tensors

from dumpdiff.model.trace import Trace

#: First readers of the rotary angles in ptdbg's dump: one cosine and one sine table for all four layers.
COSINE, SINE = "Tensor.__mul__.2.forward", "Tensor.__mul__.3.forward"
NORM = "Tensor.__mul__.7.forward"

Traces = Callable[[str], Trace]


def other(whole: Trace, reader: str, slot: str = "input.1") -> Trace:
    """The trace of a run in which what an op reads was another, and so all that is computed from it."""
    return scale_tensors(whole, {*find_tensors_like(whole, reader, slot), *find_dependents(whole, reader)}, 1.1)


def kind_and_title(target: Trace, reference: Trace) -> tuple[str, str]:
    first = locate_divergence(target, reference).first_divergence
    assert first is not None
    return first.kind, first.title


@pytest.mark.parametrize("table", [COSINE, SINE])
def test_nothing_goes_back_to_a_table_of_a_record_without_names(trace: Traces, table: str) -> None:
    whole = trace("v6.0_api_stack_summary")
    kind, title = kind_and_title(other(whole, table), whole)
    assert kind == "constant"
    assert title.startswith("a constant table differs, read by ")


def test_a_gradient_goes_back_to_a_norm_weight_without_a_name(trace: Traces) -> None:
    whole = trace("v6.0_api_stack_summary")
    kind, title = kind_and_title(other(whole, NORM), whole)
    assert kind == "parameter"
    assert title.startswith("a parameter without a name differs, read by ")


def test_what_a_record_does_not_name_among_its_parameters_is_none(trace: Traces) -> None:
    whole = trace("pt_none")
    mask = "Tensor.__add__.0.forward"
    assert kind_and_title(other(whole, mask), whole)[0] == "constant"


def test_a_record_that_names_few_of_its_parameters_says_nothing_of_the_others(
    trace: Traces,
) -> None:
    whole = trace("v6.0_api_stack_summary")
    one = edit_tensors(
        whole, find_tensors_like(whole, "Functional.linear.0.forward", "input.1"), parameter="layers.0.wq.weight"
    )
    assert kind_and_title(other(one, "Functional.linear.18.forward"), one)[0] == "parameter"


def test_without_a_backward_pass_and_names_nobody_can_tell(trace: Traces) -> None:
    whole = trace("v6.0_api_stack_summary")
    forward = [op for op, phase in enumerate(whole.ops["phase"]) if phase == "forward"]
    assert (
        kind_and_title(other(select_ops(whole, forward), COSINE), select_ops(whole, forward))[0]
        == "parameter"
    )
