"""How far an answer can be trusted, given what is wrong with the two dumps themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..model.finding import Finding
from ..model.trace import Problem

#: Factor on the confidence of a finding at an op whose own record contradicts itself: either the
#: record or the run is wrong there, and nothing in the dump decides between the two.
_CONTRADICTED_FACTOR = 0.5


@dataclass(frozen=True)
class SideProblems:
    """What is wrong with the dump of one side."""

    path: str
    problems: Sequence[Problem]
    records: int  #: tensors of the dump


@dataclass(frozen=True)
class Reliability:
    """What the problems of both dumps do to the answer."""

    weaknesses: tuple[str, ...]  #: sentences, one for each damaged side
    #: sentences that make the answer inconclusive, with the next command
    obstacles: tuple[str, ...]
    factor: float  #: on the confidence of every finding
    contradicted_ops: frozenset[str]  #: ops whose own records contradict themselves


def assess_reliability(sides: Mapping[str, SideProblems], max_share: float) -> Reliability:
    """Return what the weakening problems of both dumps do to the answer.

    ``max_share`` is the share of damaged records from which on nothing can be concluded: the share
    of ops that ``aligned`` may leave uncompared. Below it, a finding rests on sound records as
    often as a record is sound, hence the factor: the share of sound records, of the worse side.
    """
    weaknesses, obstacles = [], []
    factor = 1.0
    contradicted_ops: set[str] = set()
    for side, dump in sides.items():
        weakening = [problem for problem in dump.problems if problem.weakens]
        if not weakening:
            continue
        contradicted_ops.update(problem.op for problem in weakening if problem.op)
        n_damaged = sum(problem.count for problem in weakening)
        share = min(1.0, n_damaged / max(1, dump.records))
        factor = min(factor, 1.0 - share)
        sentence = _describe_damage(side, weakening, n_damaged)
        weaknesses.append(sentence)
        if share > max_share:
            obstacles.append(
                f"{sentence}: too many of its {dump.records:,} records; "
                f"run dumpdiff verify {dump.path}, and record it again"
            )
    return Reliability(
        tuple(weaknesses), tuple(obstacles), round(factor, 3), frozenset(contradicted_ops)
    )


def _describe_damage(side: str, problems: Sequence[Problem], n_damaged: int) -> str:
    """Return a clause with the number of damaged records and the problem that concerns most."""
    worst = max(problems, key=lambda problem: problem.count)
    subject = "a record" if n_damaged == 1 else f"{n_damaged:,} records"
    message = worst.message.replace(": ", ", ")
    return f"{subject} of the {side} cannot be relied on ({message})"


def weaken_findings(findings: Sequence[Finding], reliability: Reliability) -> tuple[Finding, ...]:
    """Return the findings with the confidence that the damage of the dumps leaves them."""
    if not reliability.weaknesses:
        return tuple(findings)
    weakened = []
    for finding in findings:
        factor = reliability.factor
        evidence = finding.evidence
        ops = {*finding.target_ops[-1:], *finding.reference_ops[-1:]}
        if ops & reliability.contradicted_ops:
            factor *= _CONTRADICTED_FACTOR
            evidence = (*evidence, "its own record contradicts itself, see the problems")
        confidence = round(finding.confidence * factor, 3)
        weakened.append(replace(finding, confidence=confidence, evidence=evidence))
    return tuple(weakened)
