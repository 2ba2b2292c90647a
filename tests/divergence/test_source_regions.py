"""Where a region of many ops begins: behind the parts of it that agree."""

import pytest
from traces import find_dependents, locate_divergence, scale_arrays

from dumpdiff.divergence.source_regions import select_roles

LSTM_CALL = "Module.lstm.LSTM.forward.0"


class TestAnUnrolledCell:
    """An LSTM: one op of the reference, and of the target many, whose states the one op returns."""

    @pytest.fixture
    def late_gate(self, trace):
        """Return the name of the last sigmoid of the forward pass."""
        ops = trace("ms_lstm").ops
        is_gate = (ops["kind"] == "Sigmoid") & (ops["phase"] == "forward")
        return str(ops["name"][is_gate].iloc[-1])

    def test_the_steps_before_a_late_difference_are_left_out(self, trace, late_gate):
        clean_trace = trace("ms_lstm")
        diverged_trace = scale_arrays(clean_trace, find_dependents(clean_trace, late_gate), 1.3)
        finding = locate_divergence(diverged_trace, trace("pt_lstm")).findings[0]
        assert finding.reference_ops == (LSTM_CALL,)
        assert late_gate in finding.target_ops
        assert not any(name.endswith("StridedSlice-op0") for name in finding.target_ops)
        mirrored = locate_divergence(trace("pt_lstm"), diverged_trace).findings[0]
        assert mirrored.reference_ops == finding.target_ops


def test_the_first_op_of_each_role_and_the_ends_are_selected(flow):
    """One op of 40 is a product: it is named although it is neither first nor last."""
    side = flow("pt_none")
    ops = list(range(len(side.trace.ops)))[:40]
    kinds = ["add"] * 40
    kinds[20] = "mul"
    selected_ops = select_roles(side, ops, kinds, 10)
    assert len(selected_ops) == 10
    assert {0, 20, 39} <= set(selected_ops)
    assert list(selected_ops) == sorted(selected_ops)
    assert select_roles(side, ops[:10], kinds[:10], 10) == tuple(ops[:10])
