"""What damage of a dump does to an answer: words, confidence, verdict."""

from __future__ import annotations

from dataclasses import replace

from results import make_result

from dumpdiff.divergence.reliability import SideProblems, assess_reliability, weaken_findings
from dumpdiff.model.trace import Problem

FINDING = make_result().findings[0]
DAMAGED = Problem("dump.json", "damaged entry skipped", 7, count=50, weakens=True)
NOTE = Problem("construct.json", "damaged, not used", count=900)


def assess(*problems: Problem, records: int = 1000):
    sides = {
        "target": SideProblems("/dump", problems, records),
        "reference": SideProblems("/other", (), records),
    }
    return assess_reliability(sides, max_share=0.3)


def test_problems_that_concern_no_values_change_nothing() -> None:
    reliability = assess(NOTE)
    assert reliability.weaknesses == reliability.obstacles == ()
    assert reliability.factor == 1.0
    finding = FINDING
    assert weaken_findings([finding], reliability) == (finding,)


def test_damage_is_counted_and_lowers_the_confidence_by_its_share() -> None:
    reliability = assess(NOTE, DAMAGED)
    assert reliability.weaknesses == (
        "50 records of the target cannot be relied on (damaged entry skipped)",
    )
    assert reliability.factor == 0.95
    assert reliability.obstacles == ()
    (weakened,) = weaken_findings([replace(FINDING, confidence=0.8)], reliability)
    assert weakened.confidence == 0.76


def test_the_worse_side_counts() -> None:
    sides = {
        "target": SideProblems("/dump", [DAMAGED], 1000),
        "reference": SideProblems("/other", [DAMAGED], 250),
    }
    reliability = assess_reliability(sides, max_share=0.3)
    assert reliability.factor == 0.8
    assert len(reliability.weaknesses) == 2


def test_too_much_damage_is_an_obstacle_with_the_next_command() -> None:
    (obstacle,) = assess(DAMAGED, records=100).obstacles
    assert obstacle == (
        "50 records of the target cannot be relied on (damaged entry skipped): too many of its "
        "100 records; run dumpdiff verify /dump, and record it again"
    )


def test_a_finding_whose_own_record_contradicts_itself_is_half_as_certain() -> None:
    finding = replace(FINDING, confidence=0.8)
    problem = replace(DAMAGED, count=1, op=finding.target_ops[-1])
    (weakened,) = weaken_findings([finding], assess(problem))
    assert weakened.confidence == 0.4
    assert weakened.evidence[-1].startswith("its own record contradicts itself")
