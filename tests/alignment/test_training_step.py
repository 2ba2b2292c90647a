"""New weights and moments find their partners by the parameter they belong to, however far the steps are apart."""

from dataclasses import replace

import pytest
from traces import start_matching, load_shipped_rules, scale_tensors

from dumpdiff import read
from dumpdiff.alignment import anchors
from dumpdiff.alignment.training_step import pair_by_update
from dumpdiff.graph import build_flow, find_gradients

#: What PyTorch's Adam writes of the moments -> what half of every gradient makes of it.
MOMENTS = {"Tensor.lerp_": 0.5, "Tensor.addcmul_": 0.25}


def made_by(flow, kind):
    """Values that ops of a kind make."""
    kinds = flow.trace.ops["kind"].tolist()
    return {value for op, writes in enumerate(flow.writes) if kinds[op] == kind for value in writes}


@pytest.fixture(scope="module")
def found(recorded):
    """The first step of Adam, and the same with half of every gradient; only what has a name is paired before."""
    recording = read(recorded("pytorch", "--optimizer"))
    flow = build_flow(recording)
    trace = halved = replace(recording, tensors=flow.tensors)
    for kind, factor in MOMENTS.items():
        values = made_by(flow, kind)
        halved = scale_tensors(
            halved,
            [row for row, value in enumerate(flow.tensor_class.tolist()) if value in values],
            factor,
        )
    sides = start_matching(halved, trace)
    anchors.pair_by_parameter_name(sides, load_shipped_rules())
    named = set(sides.evidence)
    assert pair_by_update(
        sides, find_gradients(sides.target, sides.kinds_t), find_gradients(sides.reference, sides.kinds_r)
    )
    return sides, set(sides.evidence) - named


@pytest.mark.record
class TestByUpdate:
    def test_every_moment_and_every_new_weight_has_a_partner(self, found):
        sides, updates = found
        for kind in (*MOMENTS, "Tensor.addcdiv_"):
            wanted = made_by(sides.target, kind)
            assert len(wanted) > 10
            assert wanted <= updates

    def test_it_is_the_one_that_the_same_call_made(self, found):
        sides, updates = found
        assert {
            t for t in updates if sides.producer_t[t] != sides.producer_r[sides.classes_t[t]]
        } == set()

    def test_it_says_that_this_is_why(self, found):
        sides, updates = found
        assert {sides.evidence[t] for t in updates} == {"update"}
