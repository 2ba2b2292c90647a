"""New weights and moments are paired by their parameter, however different the steps are."""

from dataclasses import replace

import pytest
from traces import load_shipped_rules, scale_tensors, start_matching

from dumpdiff import read
from dumpdiff.alignment import anchors
from dumpdiff.alignment.training_step import pair_by_update
from dumpdiff.graph import build_flow, find_gradients

#: Op that writes a moment in PyTorch's Adam -> factor of the moment if every gradient is halved.
MOMENTS = {"Tensor.lerp_": 0.5, "Tensor.addcmul_": 0.25}


def find_outputs_of_kind(flow, kind):
    """Return the values that ops of a kind produce."""
    kinds = flow.trace.ops["kind"].tolist()
    return {value for op, writes in enumerate(flow.writes) if kinds[op] == kind for value in writes}


@pytest.fixture(scope="module")
def updated_matching(recorded):
    """The first step of Adam, and the same with halved gradients; named values are paired."""
    recording = read(recorded("pytorch", "--optimizer"))
    flow = build_flow(recording)
    trace = halved = replace(recording, tensors=flow.tensors)
    for kind, factor in MOMENTS.items():
        values = find_outputs_of_kind(flow, kind)
        halved = scale_tensors(
            halved,
            [row for row, value in enumerate(flow.tensor_class.tolist()) if value in values],
            factor,
        )
    matching = start_matching(halved, trace)
    anchors.pair_by_parameter_name(matching, load_shipped_rules())
    named_values = set(matching.evidence)
    assert pair_by_update(
        matching,
        find_gradients(matching.target, matching.kinds_t),
        find_gradients(matching.reference, matching.kinds_r),
    )
    return matching, set(matching.evidence) - named_values


@pytest.mark.record
class TestByUpdate:
    def test_every_moment_and_every_new_weight_has_a_partner(self, updated_matching):
        matching, updates = updated_matching
        for kind in (*MOMENTS, "Tensor.addcdiv_"):
            parameters = find_outputs_of_kind(matching.target, kind)
            assert len(parameters) > 10
            assert parameters <= updates

    def test_the_partner_is_produced_by_the_same_call(self, updated_matching):
        matching, updates = updated_matching
        assert {
            t
            for t in updates
            if matching.producer_t[t] != matching.producer_r[matching.classes_t[t]]
        } == set()

    def test_the_evidence_of_moments_and_new_weights_is_update(self, updated_matching):
        matching, updates = updated_matching
        assert {matching.evidence[t] for t in updates} == {"update"}
