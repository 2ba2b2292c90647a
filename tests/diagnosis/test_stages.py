"""The forward and backward pass of a comparison of dumps, as stages of a triage."""

from __future__ import annotations

from dataclasses import replace

from results import ALIGNED_STATES, COVERAGE, FINDING, make_result

from dumpdiff.diagnosis.dump_evidence import DumpEvidence, summarize_dumps
from dumpdiff.diagnosis.stages import build_dump_stages, select_phase_findings

ISOLATED = replace(FINDING, kind="isolated", title="silu differs, but what follows agrees")


def make_forward_result(verdict: str = "aligned", **changes: object) -> DumpEvidence:
    """Return a comparison of two dumps of the forward pass."""
    coverage = {side: {"forward": COVERAGE[side]["forward"]} for side in COVERAGE}
    fields = {"findings": (), "states": ALIGNED_STATES, "coverage": coverage, **changes}
    return summarize_dumps(make_result(verdict=verdict, **fields))


def test_a_pass_agrees_and_says_how_much_was_compared() -> None:
    forward, backward = build_dump_stages(make_forward_result())
    assert forward.verdict == "agree"
    assert forward.headline == (
        "every compared forward value agrees: 150 of 180 values and 200 of 241 ops of the target, "
        "150 of 151 values and 162 of 165 ops of the reference"
    )
    assert backward.verdict == "inconclusive"


def test_compared_values_that_reconverged_do_not_count_as_agreement() -> None:
    forward_states = {"values": {"agreeing": 147, "reconverged": 15}, "ops": {"agreeing": 241}}
    states = {**ALIGNED_STATES, "target": {"forward": forward_states}}
    forward, _ = build_dump_stages(make_forward_result(states=states))
    assert forward.verdict == "agree"
    assert forward.headline.startswith("forward values agree, except 3 reconverged; compared: 150 ")


def test_an_isolated_difference_leaves_its_pass_inconclusive() -> None:
    result = make_forward_result("inconclusive", findings=(ISOLATED,))
    assert select_phase_findings(result, "forward") == []
    forward, _ = build_dump_stages(result)
    assert (forward.verdict, forward.headline) == ("inconclusive", ISOLATED.title)


def test_an_isolated_difference_next_to_a_divergence_is_named_as_missing() -> None:
    result = make_forward_result("diverged", findings=(FINDING, replace(ISOLATED, rank=2)))
    forward, _ = build_dump_stages(result)
    assert (forward.verdict, forward.headline) == ("differ", FINDING.title)
    assert forward.missing == (ISOLATED.title,)
