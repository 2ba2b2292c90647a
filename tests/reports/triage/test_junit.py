"""The triage for a CI server: the conclusion and every stage are cases."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree as ET

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase

from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.triage import junit

from ..alignment.test_junit import FORM, walk_elements


def write_junit(triaged: TriageResult) -> bytes:
    stream = io.BytesIO()
    junit.write(triaged, stream)
    return stream.getvalue()


def read_cases(triaged: TriageResult) -> dict[str, TestCase]:
    return {
        case.name: case for suite in JUnitXml.fromstring(write_junit(triaged)) for case in suite
    }


def test_the_form_is_the_common_one(triaged: TriageResult, weights_only: TriageResult) -> None:
    for result in (triaged, weights_only):
        for element in walk_elements(ET.fromstring(write_junit(result))):
            needed, allowed, children = FORM[element.tag]
            assert needed <= set(element.keys()) <= needed | allowed
            assert {child.tag for child in element} <= children


def test_what_differs_failed_and_what_cannot_be_told_is_an_error(triaged: TriageResult) -> None:
    cases = read_cases(triaged)
    assert tuple(cases) == ("conclusion", *STAGES)
    outcomes = {name: [type(outcome) for outcome in case.result] for name, case in cases.items()}
    assert (
        outcomes["conclusion"]
        == outcomes["logs"]
        == outcomes["forward"]
        == outcomes["optimizer"]
        == [Failure]
    )
    assert outcomes["backward"] == [Error]
    assert outcomes["settings"] == outcomes["weights"] == []
    assert (
        cases["weights"].system_out
        == "same weights, bit for bit: 2 parameters, 100 % of the elements"
    )


def test_the_conclusion_holds_its_reasons_and_the_next_command(triaged: TriageResult) -> None:
    (failure,) = read_cases(triaged)["conclusion"].result
    assert failure.type == "forward"
    assert failure.message == triaged.decision.headline
    lines = failure.text.splitlines()
    assert triaged.advice[0].commands[0] in lines
    assert any(line.startswith("ruled out: weights, by weights: same weights") for line in lines)


def test_what_was_not_given_was_skipped(weights_only: TriageResult) -> None:
    cases = read_cases(weights_only)
    (skipped,) = cases["logs"].result
    assert isinstance(skipped, Skipped)
    assert skipped.message == "no training log of the target and the reference"
    assert cases["weights"].result == []


def test_agreement_passes_and_bytes_are_the_same(triaged: TriageResult) -> None:
    agreeing = replace(triaged, decision=replace(triaged.decision, verdict="agree", cause=None))
    assert read_cases(agreeing)["conclusion"].result == []
    assert write_junit(agreeing) == write_junit(agreeing)
