"""Exchanging target and reference gives the same answer with the roles exchanged."""

import pytest

from .verdicts import describe_result

#: Correct pairs, and a fault of each kind: a weight, a factor, a missing op, a mask, a rate.
PAIRS = (
    ("ms_graph", "v6.0_api_stack"),
    ("ms_graph_bug_w1", "v6.0_api_stack"),
    ("ms_graph_bug_w1", "v6.0_api_stack_summary"),
    ("ms_mf_attn_scale", "pt_none"),
    ("ms_gpt2", "pt_gpt2_no_bias"),
    ("ms_gpt2", "pt_gpt2_no_mask"),
    ("ms_update_adam", "pt_update_adam"),
    ("ms_update_adam", "pt_update_adam_rate"),
)

#: In bfloat16, statistics near their tolerance depend on whose scale they have, so that the states
#: of this pair may differ by a value.
BFLOAT16_PAIR = ("ms_gpt2", "pt_gpt2_no_mask")


@pytest.fixture(params=PAIRS, ids=" against ".join)
def both_directions(request, dump, compared):
    target, reference = (dump(name) for name in request.param)
    return compared(target, reference), compared(reference, target)


def exchange_place(finding):
    return set(finding.reference_ops), set(finding.target_ops)


def test_the_verdict_is_the_same(both_directions):
    forward, backward = both_directions
    assert forward.verdict == backward.verdict, describe_result(backward)


def test_every_finding_names_the_same_ops(both_directions):
    forward, backward = both_directions
    places = [(set(finding.target_ops), set(finding.reference_ops)) for finding in forward.findings]
    assert places == [exchange_place(finding) for finding in backward.findings]


@pytest.mark.parametrize(
    "both_directions",
    [pair for pair in PAIRS if pair != BFLOAT16_PAIR],
    ids=" against ".join,
    indirect=True,
)
def test_coverage_and_states_are_those_of_the_other_side(both_directions):
    forward, backward = both_directions
    assert forward.coverage["target"] == backward.coverage["reference"]
    assert forward.coverage["reference"] == backward.coverage["target"]
    assert forward.states["target"] == backward.states["reference"]
    assert forward.states["reference"] == backward.states["target"]
