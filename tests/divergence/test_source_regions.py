"""Where a region of many ops begins: behind the parts of it that agree."""

from traces import find_dependents, locate_divergence, scale_arrays

from dumpdiff.divergence.source_regions import select_roles
from dumpdiff.graph import build_flow

LSTM_CALL = "Module.lstm.LSTM.forward.0"


def shorten(names):
    return [name.rpartition("/")[2] for name in names]


class TestAnUnrolledCell:
    """An LSTM: one op of the reference, 264 of the target, whose states it returns stacked."""

    def diverge(self, trace, name):
        """Return the finding where the result of a gate, and all that follow, are scaled."""
        clean_trace = trace("ms_lstm")
        diverged_trace = scale_arrays(clean_trace, find_dependents(clean_trace, name), 1.3)
        finding = locate_divergence(diverged_trace, trace("pt_lstm")).findings[0]
        mirrored = locate_divergence(trace("pt_lstm"), diverged_trace).findings[0]
        assert finding.reference_ops == mirrored.target_ops == (LSTM_CALL,)
        assert mirrored.reference_ops == finding.target_ops
        return finding
