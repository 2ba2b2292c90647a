"""Gradients find their partners by the values that they are gradients of, beyond a divergence of everything."""

from dataclasses import replace

import numpy as np
import pytest
from traces import align_traces, add_noise

from dumpdiff import read
from dumpdiff.graph import build_flow
from dumpdiff.model.trace import BACKWARD, FORWARD


def right_and_wrong(found, clean, phase):
    """How many pairs of a phase are those of the clean alignment, and how many are others."""
    known = dict(
        zip(clean.classes["target"].tolist(), clean.classes["reference"].tolist(), strict=True)
    )
    phases = found.target.list_column("phase")
    pairs = [
        (t, r) for t, r in found.classes[["target", "reference"]].itertuples(index=False)
        if phases[t] == phase and t in known and found.target.producers[t] >= 0
    ]  # fmt: skip
    right = sum(known[t] == r for t, r in pairs)
    return right, len(pairs) - right


@pytest.fixture(scope="module")
def pairs(recorded):
    """Two frameworks that agree; and the same with every computed value of the target off by a third, at random."""
    target, reference = read(recorded("mindspore")), read(recorded("pytorch"))
    known = replace(target, tensors=build_flow(target).tensors)  # statistics of the whole tensors
    return align_traces(target, reference), align_traces(add_noise(known, 0.3), reference)


@pytest.mark.record
class TestByGradient:
    def test_without_a_value_that_agrees_most_gradients_find_their_partner(self, pairs):
        clean, noisy = pairs
        right, wrong = right_and_wrong(noisy, clean, BACKWARD)
        assert right > 60
        assert wrong == 0

    def test_it_says_that_this_is_why(self, pairs):
        _, noisy = pairs
        phases = np.array(noisy.target.list_column("phase"), dtype=object)[noisy.classes["target"]]
        evidence = noisy.classes["evidence"].to_numpy()
        assert (evidence[phases == BACKWARD] == "gradient").mean() > 0.5
        assert not (evidence[phases == FORWARD] == "gradient").any()
