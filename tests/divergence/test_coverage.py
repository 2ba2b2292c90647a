"""How much could be compared, by side and phase."""

import numpy as np
import pytest
from traces import (
    classify_traces,
    edit_tensors,
    find_outputs,
    find_result,
    find_tensors_like,
    locate_divergence,
    remove_ops,
    remove_tensors,
    scale_result,
    select_ops,
    skip_op,
)

from dumpdiff import read
from dumpdiff.divergence.coverage import compute_coverage, count_index_ops, count_states
from dumpdiff.model.verdict import VALUE_STATES

SILU, DIVISION = "Functional.silu.1.forward", "Tensor.__truediv__.1.forward"


def measure_coverage(target, reference):
    return compute_coverage(*classify_traces(target, reference))


def count_ops(phase, table):
    return {
        side: tuple(int(figures[phase][name]) for name in ("ops", "compared", "reconverged"))
        for side, figures in table.items()
    }


@pytest.mark.parametrize(
    "name", ["pt_none", "ms_mf_none", "v6.0_api_stack_summary", "demo_pytorch"]
)
class TestTwoEqualRuns:
    def test_two_equal_runs_are_compared_almost_everywhere(self, trace, name):
        for figures in measure_coverage(trace(name), trace(name)).values():
            assert {phase for phase in figures if figures[phase]["share"] > 0.95} == set(figures)

    def test_two_equal_runs_have_the_same_coverage_on_both_sides(self, trace, name):
        table = measure_coverage(trace(name), trace(name))
        assert table["target"] == table["reference"]


@pytest.mark.parametrize(
    "pair", [("pt_none", "pt_none"), ("ms_mf_none", "pt_none"), ("ms_graph", "v6.0_api_stack")]
)
def test_the_share_is_what_was_compared_of_what_there_is(trace, pair):
    for figures in measure_coverage(*map(trace, pair)).values():
        for numbers in figures.values():
            assert numbers["share"] == numbers["compared"] / numbers["ops"]
            assert 0 <= numbers["compared"] + numbers["reconverged"] <= numbers["ops"]


class TestValues:
    def test_parameters_and_inputs_count(self, trace):
        """A weight that only one side has is a value that was not compared."""
        clean_trace = trace("pt_none")
        gate = find_tensors_like(clean_trace, "Functional.linear.11.forward", "input.1")
        table = measure_coverage(clean_trace, remove_tensors(clean_trace, gate))
        figures = table["target"]["forward"]
        assert figures["compared_values"] == figures["values"] - 1
        assert figures["value_share"] == figures["compared_values"] / figures["values"]

    @pytest.mark.parametrize("pair", [("pt_none", "pt_none"), ("ms_graph", "v6.0_api_stack")])
    def test_every_value_has_one_state(self, trace, pair):
        graph, states = classify_traces(*map(trace, pair))
        counts, coverage = count_states(graph, states), compute_coverage(graph, states)
        for side, phases in coverage.items():
            for phase, figures in phases.items():
                by_state = counts[side][phase]["values"]
                assert sum(by_state.values()) == figures["values"]
                assert set(by_state) <= set(VALUE_STATES)

    def test_an_op_has_the_worst_state_of_its_results(self, trace):
        clean_trace = trace("pt_none")
        target = scale_result(clean_trace, SILU, 1.05, and_after=True)
        graph, states = classify_traces(target, clean_trace)
        ops = count_states(graph, states)["target"]["forward"]["ops"]
        assert ops["introduced"] == 2  # the function, and the module around it
        assert sum(ops.values()) == compute_coverage(graph, states)["target"]["forward"]["ops"]


class TestOps:
    def test_the_second_model_has_132_calls_forward_171_backward_and_48_updates(self, trace):
        table = measure_coverage(trace("pt_none"), trace("pt_none"))
        assert {phase: figures["ops"] for phase, figures in table["target"].items()} == {
            "forward": 132, "backward": 171, "optimizer": 48,
        }  # fmt: skip

    def test_an_op_that_one_side_did_not_call_is_not_compared_on_the_other(self, trace):
        table = measure_coverage(skip_op(trace("pt_none"), DIVISION), trace("pt_none"))
        assert count_ops("forward", table) == {"target": (131, 131, 0), "reference": (132, 131, 1)}

    def test_an_op_whose_result_is_read_is_compared_though_the_result_was_not_recorded(self, trace):
        table = measure_coverage(remove_ops(trace("pt_none"), DIVISION), trace("pt_none"))
        assert count_ops("forward", table) == {"target": (131, 131, 0), "reference": (132, 132, 0)}

    def test_an_op_without_any_result_does_not_count(self, trace):
        clean_trace = trace("pt_none")
        table = measure_coverage(
            remove_tensors(clean_trace, find_result(clean_trace, DIVISION)), clean_trace
        )
        assert table["target"]["forward"]["ops"] == 131

    def test_a_result_without_numbers_is_not_compared(self, trace):
        clean_trace = trace("pt_none")
        update = "Tensor.add_.3.forward"
        bare_trace = edit_tensors(
            clean_trace,
            find_outputs(clean_trace, update),
            max=np.nan,
            min=np.nan,
            mean=np.nan,
            norm=np.nan,
        )
        assert count_ops("optimizer", measure_coverage(bare_trace, clean_trace))["reference"] == (
            48,
            47,
            0,
        )

    def test_calls_that_mindspore_writes_for_parameters_do_not_count(self, trace):
        ops = trace("ms_graph").ops
        forward = measure_coverage(trace("ms_graph"), trace("ms_graph"))["target"]["forward"]["ops"]
        assert forward <= (ops["phase"] == "forward").sum() - (ops["kind"] == "Parameter").sum()


class TestPhases:
    def test_a_phase_that_a_side_lacks_is_not_there(self, trace):
        clean_trace = trace("pt_none")
        forward = select_ops(
            clean_trace, np.flatnonzero(clean_trace.ops["phase"] == "forward").tolist()
        )
        table = measure_coverage(forward, clean_trace)
        assert set(table["target"]) == {"forward"}
        assert table["reference"]["backward"]["compared"] == 0

    def test_backward_records_that_only_received_a_gradient_count(self, trace):
        """PyTorch's calls: what they put out is doubted, what they were given is not."""
        table = measure_coverage(trace("v6.0_api_stack_summary"), trace("v6.0_api_stack_summary"))
        assert table["target"]["backward"]["compared"] > 150


def test_the_result_has_the_coverage(trace):
    assert locate_divergence(trace("pt_none"), trace("pt_none")).coverage == measure_coverage(
        trace("pt_none"), trace("pt_none")
    )


class TestIndexOps:
    """Of a model with a mask of its tokens, and the index of its last one, which no op reads."""

    @staticmethod
    def count(target, reference):
        return count_index_ops(*classify_traces(target, reference))

    def test_only_the_index_that_no_op_reads_does_not_count(self, dump):
        trace = read(dump("pt_towers") / "towers_plain")
        assert self.count(trace, trace) == {"target": 1, "reference": 1}
        without_index = remove_ops(trace, "Tensor.argmax.0.forward")
        assert self.count(trace, without_index) == {"target": 1, "reference": 0}

    def test_an_op_with_floating_point_numbers_counts(self, trace):
        clean_trace = trace("pt_none")
        assert self.count(skip_op(clean_trace, DIVISION), clean_trace)["reference"] == 0
