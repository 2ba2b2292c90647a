"""JUnit reports for a CI server, in the form that Jenkins, GitLab and Azure read.

The elements are ``testsuites``, ``testsuite`` and ``testcase`` with ``failure``, ``error``,
``skipped`` and ``system-out``, as in the schema of Jenkins' xUnit plugin (junit-10.xsd). Control
characters, which XML cannot hold, are escaped as in Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, Literal
from xml.etree import ElementTree as ET

from ...model.formatting import escape_control

Outcome = Literal["failure", "error", "skipped"]

_TOTALS = ("tests", "failures", "errors", "skipped")
_TOTAL_OF_OUTCOME: Mapping[str, str] = {
    "failure": "failures",
    "error": "errors",
    "skipped": "skipped",
}


def write_suites(suites: Sequence[ET.Element], stream: IO[bytes]) -> None:
    """Write the suites that have a case, as UTF-8; equal suites give equal bytes."""
    filled_suites = [suite for suite in suites if len(suite)]
    root = _add_children(ET.Element("testsuites", name="dumpdiff"), filled_suites)
    ET.indent(root)
    ET.ElementTree(root).write(stream, encoding="utf-8", xml_declaration=True)
    stream.write(b"\n")


def build_suite(name: str, cases: Sequence[ET.Element]) -> ET.Element:
    """Return a suite of cases, with their totals."""
    return _add_children(ET.Element("testsuite", name=name), cases)


def build_case(classname: str, name: str, output: Sequence[str]) -> ET.Element:
    """Return a case that passed, with the lines of its output."""
    attributes = {"classname": escape_control(classname), "name": escape_control(name), "time": "0"}
    case = ET.Element("testcase", attributes)
    if output:
        ET.SubElement(case, "system-out").text = _join_lines(output)
    return case


def set_outcome(
    case: ET.Element, outcome: Outcome, message: str, kind: str = "", lines: Sequence[str] = ()
) -> None:
    """Set the outcome of a case that did not pass; the element comes before the case's output."""
    element = ET.Element(str(outcome), message=escape_control(message))
    if kind:
        element.set("type", kind)
    element.text = _join_lines(lines)
    case.insert(0, element)


def _add_children(element: ET.Element, children: Sequence[ET.Element]) -> ET.Element:
    """Add suites or cases and their totals to an element, and return it."""
    totals: Counter[str] = Counter()
    for child in children:
        totals.update(_count_case(child) if child.tag == "testcase" else _read_totals(child))
    for name in _TOTALS:
        if (element.tag, name) != ("testsuites", "skipped"):  # the schema has no such attribute
            element.set(name, str(totals[name]))
    element.set("time", "0")
    element.extend(children)
    return element


def _count_case(case: ET.Element) -> dict[str, int]:
    outcomes = {_TOTAL_OF_OUTCOME[child.tag] for child in case if child.tag in _TOTAL_OF_OUTCOME}
    return {"tests": 1} | dict.fromkeys(outcomes, 1)


def _read_totals(suite: ET.Element) -> dict[str, int]:
    return {name: int(suite.get(name, 0)) for name in _TOTALS}


def _join_lines(lines: Sequence[str]) -> str | None:
    return "\n".join(escape_control(line) for line in lines) or None
