"""The report for a CI server: read by a reader of JUnit files, and in the form that Jenkins' schema asks for."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase
from results import FINDING, RSQRT, make, pairs

from dumpdiff import align
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment import junit
from dumpdiff.reports.alignment.junit import find_layer

#: Attributes an element must have, those it may have, and its children (junit-10.xsd of Jenkins' xUnit plugin).
FORM = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors"}, {"skipped", "time"}, {"testcase"}),
    "testcase": ({"name"}, {"classname", "time"}, {"skipped", "error", "failure", "system-out"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}  # fmt: skip

AGREE = {"phase": "forward", "state": "agreeing", "error": 1e-7}
FOLLOW = {"phase": "forward", "state": "propagated", "error": 3e-2}
LAYERS = pairs(
    {**AGREE, "scope": "embedding"},
    {**AGREE, "scope": "layers.0.attention.q"},
    {**AGREE, "scope": "layers.0.mlp", "error": 2e-7},
    {**FOLLOW, "scope": "layers.1.post_norm", "state": "introduced"},
    {**AGREE, "scope": "layers.2.attention.q"},
    {**FOLLOW, "scope": "layers.2.mlp"},
    {"phase": "forward", "state": "incomparable", "scope": ""},
    {**FOLLOW, "scope": "layers.2.mlp", "phase": "backward"},
)


def written(result: Result) -> bytes:
    stream = io.BytesIO()
    junit.write(result, stream)
    return stream.getvalue()


def cases(result: Result) -> dict[tuple[str, str], TestCase]:
    """By class and name, as a CI server tells them apart."""
    suites = JUnitXml.fromstring(written(result))
    return {(case.classname, case.name): case for suite in suites for case in suite}


def outcomes(result: Result, phase: str) -> dict[str, list[type]]:
    return {
        name: [type(one) for one in case.result]
        for (of, name), case in cases(result).items()
        if of == f"dumpdiff.{phase}"
    }


def elements(element: ET.Element) -> Iterator[ET.Element]:
    yield element
    for child in element:
        yield from elements(child)


@pytest.mark.parametrize("verdict", ["aligned", "diverged", "inconclusive"])
def test_the_form_is_the_common_one(verdict: str) -> None:
    for element in elements(ET.fromstring(written(make(verdict=verdict, pairs=LAYERS)))):
        needed, allowed, children = FORM[element.tag]
        assert needed <= set(element.keys()) <= needed | allowed
        assert {child.tag for child in element} <= children


def test_the_totals_are_those_of_the_cases() -> None:
    root = ET.fromstring(written(make(pairs=LAYERS)))
    for element in (root, *root):
        found = list(element.iter("testcase"))
        assert int(element.attrib["tests"]) == len(found)
        for tag, name in (("failure", "failures"), ("error", "errors")):
            assert int(element.attrib[name]) == len(list(element.iter(tag)))


def test_a_finding_is_a_failure() -> None:
    name = f"layers.1.post_norm: {RSQRT} vs Torch.rsqrt.3.forward, output.0"
    (failure,) = cases(make(pairs=LAYERS))["dumpdiff.forward", name].result
    assert isinstance(failure, Failure)
    assert failure.message == FINDING.title
    assert failure.type == "introduced"
    for said in (
        "finding 1, 97% sure, tolerance 1.0e-5",
        "target model.py:46",
        "error 3.1e-2",
        "input values agree",
    ):
        assert said in failure.text.splitlines()


def test_a_layer_that_agrees_passes_and_shows_its_numbers() -> None:
    found = cases(make(pairs=LAYERS))
    assert found["dumpdiff.forward", "layers.0"].result == []
    assert found["dumpdiff.forward", "layers.0"].system_out == "2 agreeing; largest error 2.0e-7"
    assert found["dumpdiff.forward", "embedding"].result == []


def test_what_only_follows_is_skipped_and_the_layer_at_fault_is_the_finding() -> None:
    found = outcomes(make(pairs=LAYERS, findings=(FINDING,)), "forward")
    assert found["layers.2"] == [Skipped]
    assert "layers.1" not in found
    assert outcomes(make(pairs=LAYERS, findings=(FINDING,)), "backward") == {"layers.2": [Skipped]}


def test_what_could_not_be_compared_is_skipped() -> None:
    assert outcomes(make(pairs=LAYERS), "forward")["outside of layers"] == [Skipped]


def test_an_inconclusive_result_is_an_error_and_says_why() -> None:
    case = cases(make(verdict="inconclusive", findings=()))["dumpdiff", "enough could be compared"]
    (error,) = case.result
    assert isinstance(error, Error)
    assert error.message == "inconclusive: step 0 is the first that both have"
    assert "target, forward: 200 of 241 ops compared, 82.9 %" in case.system_out.splitlines()


def test_where_it_is_inconclusive_no_finding_is_a_failure() -> None:
    result = make(verdict="inconclusive", pairs=LAYERS)
    suites = JUnitXml.fromstring(written(result))
    assert (suites.failures, suites.errors) == (0, 1)
    assert [Skipped] in [
        outcome for name, outcome in outcomes(result, "forward").items() if RSQRT in name
    ]


def test_a_result_of_nothing_is_not_an_empty_report() -> None:
    nothing = make(verdict="inconclusive", findings=(), pairs=pairs(), coverage={}, notes=())
    suites = JUnitXml.fromstring(written(nothing))
    assert (suites.tests, suites.errors) == (1, 1)


def test_hostile_names_and_control_characters_are_text() -> None:
    name = "\x1b[2J</failure>]]><!--&\x00\udcff\ufffe\n"
    result = make(
        findings=(replace(FINDING, title=name, target_ops=(name,), scope=name, evidence=(name,)),)
    )
    (failure,) = (
        one for case in cases(result).values() for one in case.result if isinstance(one, Failure)
    )
    assert failure.message == r"\x1b[2J</failure>]]><!--&\x00\udcff\ufffe\n"


def test_equal_results_give_equal_bytes() -> None:
    assert written(make(pairs=LAYERS)) == written(make(pairs=LAYERS.copy()))


@pytest.mark.parametrize(
    ("scope", "layer"),
    [
        ("layers.11.mlp.up", "layers.11"),
        ("final_norm", "final_norm"),
        ("mtp.0.norm", "mtp.0"),
        ("", "outside of layers"),
    ],
)
def test_a_layer_is_where_a_scope_is(scope: str, layer: str) -> None:
    assert find_layer(scope) == layer


def test_the_demo(dump: Callable[[str], Path]) -> None:
    result = align(dump("demo_mindspore"), dump("demo_pytorch"))
    suites = JUnitXml.fromstring(written(result))
    assert (suites.failures, suites.errors) == (1, 0)
    forward = outcomes(result, "forward")
    assert forward["embedding"] == forward["layers.0"] == []
    assert forward["layers.2"] == [Skipped]
    assert all(outcome == [Skipped] for outcome in outcomes(result, "backward").values())


def test_a_pair_that_agrees_has_no_failure(dump: Callable[[str], Path]) -> None:
    path = dump("pt_none")
    suites = JUnitXml.fromstring(written(align(path, path)))
    assert suites.tests > 10
    assert (suites.failures, suites.errors) == (0, 0)
    assert {suite.name for suite in suites} >= {"coverage", "forward", "backward"}
