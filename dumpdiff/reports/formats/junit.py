"""Suites of test cases for a CI server, in the form that Jenkins, GitLab and Azure read.

``testsuites``, ``testsuite`` and ``testcase`` with ``failure``, ``error``, ``skipped`` and ``system-out``, as in the
schema of Jenkins' xUnit plugin (junit-10.xsd). What XML cannot hold, control characters say, is escaped as in Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, Literal
from xml.etree import ElementTree as ET

from ...model.formatting import printable

Outcome = Literal["failure", "error", "skipped"]


def write_suites(suites: Sequence[ET.Element], stream: IO[bytes]) -> None:
    """Write those suites that have a case, as UTF-8; equal suites give equal bytes."""
    root = _counted(
        ET.Element("testsuites", name="dumpdiff"), [suite for suite in suites if len(suite)]
    )
    ET.indent(root)
    ET.ElementTree(root).write(stream, encoding="utf-8", xml_declaration=True)
    stream.write(b"\n")


def suite(name: str, cases: Sequence[ET.Element]) -> ET.Element:
    """Cases under a name, with their totals."""
    return _counted(ET.Element("testsuite", name=name), cases)


def testcase(classname: str, name: str, said: Sequence[str]) -> ET.Element:
    """A case that passed, with what it printed."""
    case = ET.Element("testcase", classname=printable(classname), name=printable(name), time="0")
    if said:
        ET.SubElement(case, "system-out").text = _text(said)
    return case


def ends(
    case: ET.Element, outcome: Outcome, message: str, kind: str = "", lines: Sequence[str] = ()
) -> None:
    """How a case ended, unless it passed; it stands before what the case printed."""
    element = ET.Element(str(outcome), message=printable(message))
    if kind:
        element.set("type", kind)
    element.text = _text(lines)
    case.insert(0, element)


def _counted(element: ET.Element, children: Sequence[ET.Element]) -> ET.Element:
    """The element with its children and their totals."""
    totals: Counter[str] = Counter()
    for child in children:
        if child.tag == "testcase":
            totals["tests"] += 1
            totals.update({_COUNTS[part.tag]: 1 for part in child if part.tag in _COUNTS})
        else:
            totals.update({name: int(child.get(name, 0)) for name in _TOTALS})
    for name in _TOTALS:
        if (element.tag, name) != ("testsuites", "skipped"):  # the schema has none there
            element.set(name, str(totals[name]))
    element.set("time", "0")
    element.extend(children)
    return element


_TOTALS = ("tests", "failures", "errors", "skipped")
_COUNTS: Mapping[str, str] = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def _text(lines: Sequence[str]) -> str | None:
    return "\n".join(printable(line) for line in lines) or None
