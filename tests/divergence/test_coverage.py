"""How much could be compared: counted by side and phase, and no more than there was."""

import numpy as np
import pytest
from traces import (
    classify_traces,
    edit_tensors,
    locate_divergence,
    find_outputs,
    find_result,
    skip_op,
    select_ops,
    remove_ops,
    remove_tensors,
)

from dumpdiff.divergence.coverage import compute_coverage

SILU, DIVISION = "Functional.silu.1.forward", "Tensor.__truediv__.1.forward"


def covered(target, reference):
    return compute_coverage(*classify_traces(target, reference))


def of(phase, table):
    return {
        side: tuple(int(figures[phase][name]) for name in ("ops", "compared", "reconverged"))
        for side, figures in table.items()
    }


@pytest.mark.parametrize(
    "name", ["pt_none", "ms_mf_none", "v6.0_api_stack_summary", "demo_pytorch"]
)
class TestTwoEqualRuns:
    def test_are_compared_almost_everywhere(self, trace, name):
        for figures in covered(trace(name), trace(name)).values():
            assert {phase for phase in figures if figures[phase]["share"] > 0.95} == set(figures)

    def test_have_the_same_figures_on_both_sides(self, trace, name):
        table = covered(trace(name), trace(name))
        assert table["target"] == table["reference"]


@pytest.mark.parametrize(
    "pair", [("pt_none", "pt_none"), ("ms_mf_none", "pt_none"), ("ms_graph", "v6.0_api_stack")]
)
def test_the_share_is_what_was_compared_of_what_there_is(trace, pair):
    for figures in covered(*map(trace, pair)).values():
        for numbers in figures.values():
            assert numbers["share"] == numbers["compared"] / numbers["ops"]
            assert 0 <= numbers["compared"] + numbers["reconverged"] <= numbers["ops"]


class TestOps:
    def test_the_second_model_has_132_calls_forward_171_backward_and_48_updates(self, trace):
        table = covered(trace("pt_none"), trace("pt_none"))
        assert {phase: figures["ops"] for phase, figures in table["target"].items()} == {
            "forward": 132, "backward": 171, "optimizer": 48,
        }  # fmt: skip

    def test_an_op_that_one_side_did_not_call_is_not_compared_on_the_other(self, trace):
        table = covered(skip_op(trace("pt_none"), DIVISION), trace("pt_none"))
        assert of("forward", table) == {"target": (131, 131, 0), "reference": (132, 131, 1)}

    def test_an_op_whose_result_is_read_is_compared_though_the_result_was_not_recorded(self, trace):
        table = covered(remove_ops(trace("pt_none"), DIVISION), trace("pt_none"))
        assert of("forward", table) == {"target": (131, 131, 0), "reference": (132, 132, 0)}

    def test_an_op_without_any_result_does_not_count(self, trace):
        whole = trace("pt_none")
        table = covered(remove_tensors(whole, find_result(whole, DIVISION)), whole)
        assert table["target"]["forward"]["ops"] == 131

    def test_a_result_without_numbers_is_not_compared(self, trace):
        whole = trace("pt_none")
        update = "Tensor.add_.3.forward"
        bare = edit_tensors(
            whole, find_outputs(whole, update), max=np.nan, min=np.nan, mean=np.nan, norm=np.nan
        )
        assert of("optimizer", covered(bare, whole))["reference"] == (48, 47, 0)

    def test_calls_that_mindspore_writes_for_parameters_do_not_count(self, trace):
        ops = trace("ms_graph").ops
        forward = covered(trace("ms_graph"), trace("ms_graph"))["target"]["forward"]["ops"]
        assert forward <= (ops["phase"] == "forward").sum() - (ops["kind"] == "Parameter").sum()


class TestPhases:
    def test_a_phase_that_a_side_lacks_is_not_there(self, trace):
        whole = trace("pt_none")
        forward = select_ops(whole, np.flatnonzero(whole.ops["phase"] == "forward").tolist())
        table = covered(forward, whole)
        assert set(table["target"]) == {"forward"}
        assert table["reference"]["backward"]["compared"] == 0

    def test_backward_records_that_only_received_a_gradient_count(self, trace):
        """PyTorch's calls: what they put out is doubted, what they were given is not."""
        table = covered(trace("v6.0_api_stack_summary"), trace("v6.0_api_stack_summary"))
        assert table["target"]["backward"]["compared"] > 150


def test_the_result_carries_it(trace):
    assert locate_divergence(trace("pt_none"), trace("pt_none")).coverage == covered(
        trace("pt_none"), trace("pt_none")
    )
