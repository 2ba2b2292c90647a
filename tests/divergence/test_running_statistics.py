"""Running statistics of batch norms: their momentum, and what only one side recorded."""

import pytest
from traces import locate_divergence


def test_another_momentum_is_found_although_nothing_else_of_the_step_depends_on_it(trace):
    result = locate_divergence(trace("ms_update_assign_sub"), trace("pt_update_sgd_momentum"))
    assert result.verdict == "diverged"
    (finding,) = result.findings
    assert finding.target_ops[0].endswith("/BatchNorm-op0")
    assert finding.reference_ops == ("Functional.batch_norm.0.forward",)
    (cause,) = finding.causes
    assert cause.name == "norm-momentum"
    assert cause.parameters["momentum"] == pytest.approx(0.1)
    assert cause.text.endswith(
        "updates its running statistics with momentum 0.1; the reference uses 0.9"
    )


def test_running_statistics_of_one_side_only_are_said_to_be_not_compared(trace):
    sides = trace("ms_update_assign_sub"), trace("pt_update_sgd")
    result = locate_divergence(*sides, min_coverage=0.6)
    assert result.verdict == "aligned"
    (note,) = [note for note in result.notes if "running statistics" in note]
    assert note.startswith("only the target recorded the running statistics")
    assert "(2 tensors)" in note


def test_two_graph_dumps_compare_them(trace):
    dump = trace("ms_update_assign_sub")
    result = locate_divergence(dump, dump)
    assert not [note for note in result.notes if "running statistics" in note]
    results = result.pairs[result.pairs["reference_op"].str.endswith("/BatchNorm-op0")]
    assert {"output.5", "output.6"} <= set(results["reference_slot"])
