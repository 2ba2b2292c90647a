"""The report for a CI server has the form of Jenkins' schema and can be read as JUnit."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase
from results import FINDING, RSQRT, make_pairs, make_result

from dumpdiff import align
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment import junit
from dumpdiff.reports.alignment.junit import find_layer

#: Required attributes, optional ones, and children (junit-10.xsd of Jenkins' xUnit plugin).
FORM = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors"}, {"skipped", "time"}, {"testcase"}),
    "testcase": ({"name"}, {"classname", "time"}, {"skipped", "error", "failure", "system-out"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}

AGREE = {"phase": "forward", "state": "agreeing", "error": 1e-7}
FOLLOW = {"phase": "forward", "state": "propagated", "error": 3e-2}
LAYERS = make_pairs(
    {**AGREE, "scope": "embedding"},
    {**AGREE, "scope": "layers.0.attention.q"},
    {**AGREE, "scope": "layers.0.mlp", "error": 2e-7},
    {**FOLLOW, "scope": "layers.1.post_norm", "state": "introduced"},
    {**AGREE, "scope": "layers.2.attention.q"},
    {**FOLLOW, "scope": "layers.2.mlp"},
    {"phase": "forward", "state": "incomparable", "scope": ""},
    {**FOLLOW, "scope": "layers.2.mlp", "phase": "backward"},
)


def write_junit(result: Result) -> bytes:
    stream = io.BytesIO()
    junit.write(result, stream)
    return stream.getvalue()


def read_cases(result: Result) -> dict[tuple[str, str], TestCase]:
    """Return the cases by class and name, as a CI server identifies them."""
    suites = JUnitXml.fromstring(write_junit(result))
    return {(case.classname, case.name): case for suite in suites for case in suite}


def read_outcomes(result: Result, phase: str) -> dict[str, list[type]]:
    outcomes = {}
    for (classname, name), case in read_cases(result).items():
        if classname == f"dumpdiff.{phase}":
            outcomes[name] = [type(outcome) for outcome in case.result]
    return outcomes


def walk_elements(element: ET.Element) -> Iterator[ET.Element]:
    yield element
    for child in element:
        yield from walk_elements(child)


@pytest.mark.parametrize("verdict", ["aligned", "diverged", "inconclusive"])
def test_the_report_follows_the_junit_schema(verdict: str) -> None:
    for element in walk_elements(
        ET.fromstring(write_junit(make_result(verdict=verdict, pairs=LAYERS)))
    ):
        needed, allowed, children = FORM[element.tag]
        assert needed <= set(element.keys()) <= needed | allowed
        assert {child.tag for child in element} <= children


def test_the_totals_are_those_of_the_cases() -> None:
    root = ET.fromstring(write_junit(make_result(pairs=LAYERS)))
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        assert int(element.attrib["tests"]) == len(cases)
        for tag, name in (("failure", "failures"), ("error", "errors")):
            assert int(element.attrib[name]) == len(list(element.iter(tag)))


def test_a_finding_is_a_failure() -> None:
    name = f"layers.1.post_norm: {RSQRT} vs Torch.rsqrt.3.forward, output.0"
    (failure,) = read_cases(make_result(pairs=LAYERS))["dumpdiff.forward", name].result
    assert isinstance(failure, Failure)
    assert failure.message == FINDING.title
    assert failure.type == "introduced"
    for line in (
        "finding 1, confidence 97%, tolerance 1.0e-5",
        "target model.py:46",
        "error 3.1e-2",
        "input values agree",
    ):
        assert line in failure.text.splitlines()


def test_a_layer_that_agrees_passes_and_shows_its_numbers() -> None:
    cases = read_cases(make_result(pairs=LAYERS))
    assert cases["dumpdiff.forward", "layers.0"].result == []
    assert cases["dumpdiff.forward", "layers.0"].system_out == "2 agreeing; largest error 2.0e-7"
    assert cases["dumpdiff.forward", "embedding"].result == []


def test_a_layer_after_the_divergence_is_skipped_and_the_layer_with_the_finding_is_no_case() -> (
    None
):
    outcomes = read_outcomes(make_result(pairs=LAYERS, findings=(FINDING,)), "forward")
    assert outcomes["layers.2"] == [Skipped]
    assert "layers.1" not in outcomes
    assert read_outcomes(make_result(pairs=LAYERS, findings=(FINDING,)), "backward") == {
        "layers.2": [Skipped]
    }


def test_what_could_not_be_compared_is_skipped() -> None:
    assert read_outcomes(make_result(pairs=LAYERS), "forward")["outside of layers"] == [Skipped]


def test_an_inconclusive_result_is_an_error_and_says_why() -> None:
    case = read_cases(make_result(verdict="inconclusive", findings=()))[
        "dumpdiff", "enough could be compared"
    ]
    (error,) = case.result
    assert isinstance(error, Error)
    assert error.message == "inconclusive: step 0 is the first that both have"
    lines = case.system_out.splitlines()
    assert (
        "target, forward ops: 82.9 % compared; 1 introduced, 19 propagated, 180 agreeing, "
        "7 reconverged, 34 unpaired"
    ) in lines
    assert "target: 18 values and 0 ops not compared: dead end" in lines


def test_where_it_is_inconclusive_no_finding_is_a_failure() -> None:
    result = make_result(verdict="inconclusive", pairs=LAYERS)
    suites = JUnitXml.fromstring(write_junit(result))
    assert (suites.failures, suites.errors) == (0, 1)
    assert [Skipped] in [
        outcome for name, outcome in read_outcomes(result, "forward").items() if RSQRT in name
    ]


def test_an_isolated_difference_is_a_failure_although_the_result_is_inconclusive() -> None:
    isolated = replace(FINDING, kind="isolated")
    rows = (
        {"phase": "forward", "scope": "layers.1.post_norm", "state": "isolated", "error": 0.3},
        {"phase": "forward", "scope": "layers.4.mlp", "state": "isolated", "error": 0.2},
    )
    result = make_result(
        verdict="inconclusive", findings=(isolated,), pairs=make_pairs(*rows, {**AGREE})
    )
    suites = JUnitXml.fromstring(write_junit(result))
    assert (suites.failures, suites.errors) == (2, 1)
    (failure,) = read_cases(result)["dumpdiff.forward", "layers.4"].result
    assert failure.message == "differs without consequence: 1 isolated; largest error 2.0e-1"


def test_a_layer_with_another_decomposition_passes_and_shows_it() -> None:
    rows = ({**AGREE, "scope": "layers.1.mlp"}, {**FOLLOW, "scope": "layers.1.mlp"})
    rows[1]["state"] = "reconverged"
    case = read_cases(make_result(findings=(), pairs=make_pairs(*rows)))[
        "dumpdiff.forward", "layers.1"
    ]
    assert case.result == []
    assert case.system_out == "1 agreeing, 1 reconverged; largest error 3.0e-2"


def test_a_result_of_nothing_is_not_an_empty_report() -> None:
    empty_result = make_result(
        verdict="inconclusive", findings=(), pairs=make_pairs(), coverage={}, states={}, notes=()
    )
    suites = JUnitXml.fromstring(write_junit(empty_result))
    assert (suites.tests, suites.errors) == (1, 1)


def test_hostile_names_and_control_characters_are_text() -> None:
    name = "\x1b[2J</failure>]]><!--&\x00\udcff\ufffe\n"
    result = make_result(
        findings=(replace(FINDING, title=name, target_ops=(name,), scope=name, evidence=(name,)),)
    )
    (failure,) = (
        outcome
        for case in read_cases(result).values()
        for outcome in case.result
        if isinstance(outcome, Failure)
    )
    assert failure.message == r"\x1b[2J</failure>]]><!--&\x00\udcff\ufffe\n"


def test_equal_results_give_equal_bytes() -> None:
    assert write_junit(make_result(pairs=LAYERS)) == write_junit(make_result(pairs=LAYERS.copy()))


@pytest.mark.parametrize(
    ("scope", "layer"),
    [
        ("layers.11.mlp.up", "layers.11"),
        ("final_norm", "final_norm"),
        ("mtp.0.norm", "mtp.0"),
        ("", "outside of layers"),
    ],
)
def test_the_layer_of_a_scope(scope: str, layer: str) -> None:
    assert find_layer(scope) == layer


def test_the_demo(dump: Callable[[str], Path]) -> None:
    result = align(dump("demo_mindspore"), dump("demo_pytorch"))
    suites = JUnitXml.fromstring(write_junit(result))
    assert (suites.failures, suites.errors) == (1, 0)
    forward = read_outcomes(result, "forward")
    assert forward["embedding"] == forward["layers.0"] == []
    assert forward["layers.2"] == [Skipped]
    assert all(outcome == [Skipped] for outcome in read_outcomes(result, "backward").values())


def test_a_pair_that_agrees_has_no_failure(dump: Callable[[str], Path]) -> None:
    path = dump("pt_none")
    suites = JUnitXml.fromstring(write_junit(align(path, path)))
    assert suites.tests > 10
    assert (suites.failures, suites.errors) == (0, 0)
    assert {suite.name for suite in suites} >= {"coverage", "forward", "backward"}
