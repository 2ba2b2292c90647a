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
    clean_pairs = dict(
        zip(
            clean_alignment.classes["target"].tolist(),
            clean_alignment.classes["reference"].tolist(),
            strict=True,
        )
    )
    phases = alignment.target.list_column("phase")
    pairs = [
        (t, r) for t, r in alignment.classes[["target", "reference"]].itertuples(index=False)
        if phases[t] == phase and t in clean_pairs and alignment.target.producers[t] >= 0
    ]  # fmt: skip
    n_right = sum(clean_pairs[t] == r for t, r in pairs)
    return n_right, len(pairs) - n_right


@pytest.fixture(scope="module")
def alignments(recorded):
    """Two alignments: of frameworks that agree, and with random errors in the target's values."""
    target, reference = read(recorded("mindspore")), read(recorded("pytorch"))
    # the flow has the statistics of the whole tensors
    target_with_statistics = replace(target, tensors=build_flow(target).tensors)
    noisy_target = add_noise(target_with_statistics, 0.3)
    return align_traces(target, reference), align_traces(noisy_target, reference)


@pytest.mark.record
class TestByGradient:
    def test_without_a_value_that_agrees_most_gradients_find_their_partner(self, alignments):
        clean_alignment, noisy_alignment = alignments
        n_right, n_wrong = count_right_and_wrong(noisy_alignment, clean_alignment, BACKWARD)
        assert n_right > 60
        assert n_wrong == 0

    def test_the_evidence_of_paired_gradients_is_gradient(self, alignments):
        _, noisy_alignment = alignments
        phases = np.array(noisy_alignment.target.list_column("phase"), dtype=object)[
            noisy_alignment.classes["target"]
        ]
        evidence = noisy_alignment.classes["evidence"].to_numpy()
        assert (evidence[phases == BACKWARD] == "gradient").mean() > 0.5
        assert not (evidence[phases == FORWARD] == "gradient").any()
