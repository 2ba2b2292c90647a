"""The triage for a CI server: the conclusion and every stage are cases."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree as ET

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase

from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.triage import junit

from ..alignment.test_junit import FORM, elements


def written(triaged: TriageResult) -> bytes:
    stream = io.BytesIO()
    junit.write(triaged, stream)
    return stream.getvalue()


def cases(triaged: TriageResult) -> dict[str, TestCase]:
    return {case.name: case for suite in JUnitXml.fromstring(written(triaged)) for case in suite}


def test_the_form_is_the_common_one(triaged: TriageResult, bare: TriageResult) -> None:
    for found in (triaged, bare):
        for element in elements(ET.fromstring(written(found))):
            needed, allowed, children = FORM[element.tag]
            assert needed <= set(element.keys()) <= needed | allowed
            assert {child.tag for child in element} <= children


def test_what_differs_failed_and_what_cannot_be_told_is_an_error(triaged: TriageResult) -> None:
    found = cases(triaged)
    assert tuple(found) == ("conclusion", *STAGES)
    ends = {name: [type(one) for one in case.result] for name, case in found.items()}
    assert ends["conclusion"] == ends["logs"] == ends["forward"] == ends["optimizer"] == [Failure]
    assert ends["backward"] == [Error]
    assert ends["settings"] == ends["weights"] == []
    assert (
        found["weights"].system_out
        == "same weights, bit for bit: 2 parameters, 100 % of the elements"
    )


def test_the_conclusion_holds_its_reasons_and_the_next_command(triaged: TriageResult) -> None:
    (failure,) = cases(triaged)["conclusion"].result
    assert failure.type == "forward"
    assert failure.message == triaged.decision.headline
    lines = failure.text.splitlines()
    assert triaged.advice[0].commands[0] in lines
    assert any(line.startswith("ruled out: weights, by weights: same weights") for line in lines)


def test_what_was_not_given_was_skipped(bare: TriageResult) -> None:
    found = cases(bare)
    (skipped,) = found["logs"].result
    assert isinstance(skipped, Skipped)
    assert skipped.message == "no training log of the target and the reference"
    assert found["weights"].result == []


def test_agreement_passes_and_bytes_are_the_same(triaged: TriageResult) -> None:
    fine = replace(triaged, decision=replace(triaged.decision, verdict="agree", cause=None))
    assert cases(fine)["conclusion"].result == []
    assert written(fine) == written(fine)
