"""The ops of a finding: those after the last agreement, and the one before an omitted addition."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    edit_tensors,
    find_dependents,
    find_op,
    find_tensors_like,
    locate_divergence,
    record_calls,
    remove_ops,
    rename_kind,
    scale_arrays,
    scale_result,
    scale_tensors,
    select_ops,
    skip_op,
)

from dumpdiff.divergence.locations import SideLocation
from dumpdiff.graph import build_flow

PROJECTION, SCORES = "Functional.linear.6.forward", "Torch.matmul.2.forward"
LSTM_CALL = "Module.lstm.LSTM.forward.0"
FIRST_GATE = "Default/network-Recurrent/lstm_cells-CellList/0-LstmCell/Sigmoid-op0"
MASKED, SOFTMAX = "Tensor.__add__.3.forward", "Functional.softmax.1.forward"
HIDING = "Tensor.__add__.4.forward"


class TestABiasThatIsNotAdded:
    """The product agrees with the other side's; what is wrong is that no addition follows."""

    def test_the_location_names_the_product_and_its_consumer(self, trace):
        (finding,) = locate_divergence(trace("ms_gpt2"), trace("pt_gpt2_no_bias")).findings
        assert finding.reference_ops == (PROJECTION, SCORES)
        assert [name.rpartition("/")[2] for name in finding.target_ops] == [
            "BiasAdd-op0",
            "BatchMatMul-op2",
        ]
        assert finding.scope == "layers.1.attention.q"

    def test_either_side_can_omit_the_bias(self, trace):
        (finding,) = locate_divergence(trace("pt_gpt2_no_bias"), trace("ms_gpt2")).findings
        assert finding.target_ops == (PROJECTION, SCORES)

    def test_the_first_op_of_a_dump_can_omit_it(self, trace):
        """A dump may begin anywhere: op 0 is an op like any other."""
        reference = trace("pt_gpt2_no_bias")
        names = reference.ops["name"].tolist()
        reference = select_ops(reference, range(names.index(PROJECTION), len(names)))
        finding = locate_divergence(trace("ms_gpt2"), reference).findings[0]
        assert reference.ops["name"].iat[0] == PROJECTION
        assert finding.reference_ops == (PROJECTION, SCORES)

    def test_a_linear_call_that_adds_the_bias_itself_omits_nothing(self, trace):
        assert locate_divergence(trace("ms_gpt2"), trace("pt_gpt2")).findings == ()


def test_a_sum_with_what_is_no_parameter_is_named_on_its_own_side_alone(trace):
    """A mask is not there where it is not added: nothing says after which op it is missing."""
    clean_trace = trace("pt_none")
    diverged_trace = scale_result(
        scale_result(clean_trace, MASKED, 3.0), SOFTMAX, 1.07, and_after=True
    )
    finding = locate_divergence(skip_op(diverged_trace, MASKED), clean_trace).findings[0]
    assert (finding.target_ops, finding.reference_ops) == ((SOFTMAX,), (MASKED, SOFTMAX))


class TestPartsOfAJoinedValue:
    """An op without a record reads what another op computes, a value without a partner."""

    DIVIDED, PRODUCT = "Tensor.__truediv__.1.forward", "Torch.matmul.2.forward"

    def make_sides(self, trace):
        """Return a side that computes other scores by other ops, without the sum, and a clean one.

        No record of a gradient shows that the loss depends on the scores: they are constants.
        """
        clean_trace = remove_ops(trace("pt_none"), "Tensor.__truediv__.1.backward")
        other_trace = rename_kind(clean_trace, self.DIVIDED, "Tensor.sin")
        other_trace = scale_tensors(other_trace, find_dependents(other_trace, self.DIVIDED), 1.3)
        return remove_ops(other_trace, MASKED), clean_trace

    def test_the_ops_of_the_parts_are_named(self, trace):
        finding = locate_divergence(*self.make_sides(trace)).findings[0]
        assert finding.target_ops == (self.DIVIDED, SOFTMAX)
        assert finding.reference_ops == (self.DIVIDED, MASKED)

    def test_an_op_whose_result_was_lost_is_named_where_it_reads_what_the_other_side_reads(
        self, trace
    ):
        """Its result does not fit: other parts may have been joined to it, or cut from it."""
        target, reference = self.make_sides(trace)
        rows = find_tensors_like(target, self.DIVIDED, "output.0")
        target = edit_tensors(target, rows, shape=(2, 4, 32, 33))
        finding = locate_divergence(target, reference).findings[0]
        assert finding.target_ops == (self.DIVIDED, SOFTMAX)

    def test_a_result_that_does_not_fit_is_no_part_of_what_the_other_side_computes(self, trace):
        target, reference = self.make_sides(trace)
        rows = find_tensors_like(target, self.DIVIDED, "output.0")
        target = edit_tensors(target, rows, shape=(2, 4, 32, 33))
        finding = locate_divergence(target, remove_ops(reference, self.DIVIDED)).findings[0]
        assert self.DIVIDED not in finding.target_ops


class TestARegionOfManyOps:
    """An LSTM, unrolled in 264 forward ops of the target and one op of the reference."""

    @pytest.fixture
    def diverged_trace(self, trace):
        """Return the target with the results of the first gate, and all that follow, scaled."""
        clean_trace = trace("ms_lstm")
        return scale_arrays(clean_trace, find_dependents(clean_trace, FIRST_GATE), 1.3)

    def test_one_op_of_each_role_is_named(self, trace, diverged_trace):
        finding = locate_divergence(diverged_trace, trace("pt_lstm")).findings[0]
        assert finding.reference_ops == (LSTM_CALL,)
        names = [name.rpartition("/")[2] for name in finding.target_ops]
        assert len(names) == 24
        assert names[:5] == ["StridedSlice-op0", "MatMul-op0", "BiasAdd-op0", "MatMul-op0",
                             "Add-op0"]  # fmt: skip
        assert FIRST_GATE in finding.target_ops
        assert names[-2:] == ["Mul-op11", "Stack-op1"]
        assert f"the region starts at {finding.target_ops[0]} vs {LSTM_CALL}" in finding.title
        assert "unpaired values in between: at least 48 target, 0 reference" in finding.evidence

    def test_the_other_direction_names_the_same_ops(self, trace, diverged_trace):
        finding = locate_divergence(diverged_trace, trace("pt_lstm")).findings[0]
        mirrored_finding = locate_divergence(trace("pt_lstm"), diverged_trace).findings[0]
        assert mirrored_finding.reference_ops == finding.target_ops
        assert mirrored_finding.target_ops == finding.reference_ops


@pytest.mark.parametrize(
    ("side", "name", "module"),
    [
        ("pt_lstm", LSTM_CALL, "lstm"),
        ("ms_lstm", FIRST_GATE, "network.lstm_cells.0"),
        ("pt_none", SOFTMAX, ""),  # an API call: 'Functional' is no module
    ],
)
def test_the_printed_scope_is_that_of_a_name_with_a_module(trace, side, name, module):
    flow = build_flow(trace(side))
    location = SideLocation(flow, -1, (find_op(trace(side), name),), False, ("any",), ("",))
    assert location.printed_scope == module


class TestAgreementThatStatisticsDoNotShow:
    """Of masked scores they show the largest one, not which are hidden."""

    def test_the_op_that_hides_scores_is_named_before_the_softmax(self, trace):
        clean_trace = drop_files(trace("pt_gpt2"))
        finding = locate_divergence(
            scale_result(clean_trace, SOFTMAX, 1.1, and_after=True), clean_trace
        ).findings[0]
        assert finding.target_ops == finding.reference_ops == (HIDING, SOFTMAX)
        sentence = f"what {HIDING} computes agrees as far as statistics show"
        assert any(sentence in fact for fact in finding.evidence)


def drop_files(trace):
    """Return the trace with the statistics of its whole tensors only."""
    return replace(trace, tensors=build_flow(trace).tensors.assign(file=""))


def record_norm(*, is_centered: bool):
    """Record the loss of x / s, or of (x - m) / s; another op of the other side has the mean m."""
    x = np.random.default_rng(4).normal(1, 1, (6, 32))
    y = np.exp(x / 4)
    mean, scale = y.mean(axis=1, keepdims=True), y.std(axis=1, keepdims=True)
    calls = [("exp", [x], y), ("mean" if is_centered else "std", [y], mean), ("sqrt", [y], scale)]
    centered = y - mean if is_centered else y
    if is_centered:
        calls.append(("sub", [y, mean], centered))
    normed = centered / scale
    calls += [("div", [centered, scale], normed), ("sum", [normed], (normed**2).sum())]
    return record_calls(*calls)


def test_an_op_whose_result_only_a_surplus_op_reads_is_named():
    """The mean agrees with a number of the other side; that it is subtracted is the difference."""
    sides = [record_norm(is_centered=is_centered) for is_centered in (False, True)]
    for target, reference, side in ((*sides, "reference"), (*reversed(sides), "target")):
        finding = locate_divergence(target, reference).findings[0]
        assert "call.1" in getattr(finding, f"{side}_ops")
