"""An optimizer that was recorded and not compared is no agreement."""

import numpy as np
from traces import edit_tensors, locate_divergence


def hide_optimizer(trace):
    """Return a trace without one number of the optimizer's results."""
    phases = trace.ops["phase"].to_numpy()[trace.tensors["op"]]
    rows = np.flatnonzero((phases == "optimizer") & (trace.tensors["slot_kind"] == "output"))
    return edit_tensors(
        trace, rows.tolist(), max=np.nan, min=np.nan, mean=np.nan, norm=np.nan, file=""
    )


def test_an_optimizer_of_both_sides_of_which_nothing_was_compared_is_inconclusive(trace):
    clean = trace("pt_update_sgd")
    result = locate_divergence(hide_optimizer(clean), clean)
    assert result.verdict == "inconclusive"
    (note,) = [note for note in result.notes if "optimizer" in note]
    assert note.startswith("both sides recorded new weights, but none could be compared")
    assert "optimizer.step()" in note


def test_a_side_without_an_optimizer_asks_for_nothing(trace):
    result = locate_divergence(trace("pt_none"), trace("ms_mf_none"))
    assert not [note for note in result.notes if "new weights" in note]
