"""Gradients are paired by the values they belong to, even if everything diverged."""

from dataclasses import replace

import numpy as np
import pytest
from traces import add_noise, align_traces

from dumpdiff import read
from dumpdiff.graph import build_flow
from dumpdiff.model.trace import BACKWARD, FORWARD


def count_right_and_wrong(alignment, clean_alignment, phase):
    """Return how many pairs of a phase are those of the clean alignment, and how many are not."""
    known_pairs = dict(
        zip(
            clean_alignment.classes["target"].tolist(),
            clean_alignment.classes["reference"].tolist(),
            strict=True,
        )
    )
    phases = alignment.target.list_column("phase")
    pairs = [
        (t, r) for t, r in alignment.classes[["target", "reference"]].itertuples(index=False)
        if phases[t] == phase and t in known_pairs and alignment.target.producers[t] >= 0
    ]  # fmt: skip
    n_right = sum(known_pairs[t] == r for t, r in pairs)
    return n_right, len(pairs) - n_right


@pytest.fixture(scope="module")
def pairs(recorded):
    """Two frameworks that agree; the same with random errors in the target's values."""
    target, reference = read(recorded("mindspore")), read(recorded("pytorch"))
    known_pairs = replace(
        target, tensors=build_flow(target).tensors
    )  # statistics of the whole tensors
    return align_traces(target, reference), align_traces(add_noise(known_pairs, 0.3), reference)


@pytest.mark.record
class TestByGradient:
    def test_without_a_value_that_agrees_most_gradients_find_their_partner(self, pairs):
        clean_alignment, noisy_alignment = pairs
        n_right, n_wrong = count_right_and_wrong(noisy_alignment, clean_alignment, BACKWARD)
        assert n_right > 60
        assert n_wrong == 0

    def test_their_evidence_is_gradient(self, pairs):
        _, noisy_alignment = pairs
        phases = np.array(noisy_alignment.target.list_column("phase"), dtype=object)[
            noisy_alignment.classes["target"]
        ]
        evidence = noisy_alignment.classes["evidence"].to_numpy()
        assert (evidence[phases == BACKWARD] == "gradient").mean() > 0.5
        assert not (evidence[phases == FORWARD] == "gradient").any()
