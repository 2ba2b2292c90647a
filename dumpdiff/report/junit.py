"""The result as a JUnit report, so that a CI server shows what was compared and what parts.

Findings are failed cases; layers that agree are passed ones; those that disagree because of what came before are
skipped ones, since nothing is said against them; and that too little could be compared is an error. The form is the
one that Jenkins, GitLab and Azure read: ``testsuites``, ``testsuite`` and ``testcase`` with ``failure``, ``error``,
``skipped`` and ``system-out``, as in the schema of Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, Literal
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd

from ..result import Finding, Result
from ..trace import PHASES
from ..wording import number
from .words import described, headline, percent, printable, roles

_OUTSIDE = "outside of layers"  #: the case of values whose place in the model is not known
Outcome = Literal["failure", "error", "skipped"]


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same result gives the same bytes.

    What XML cannot hold, control characters say, is escaped as in Python (``\\x1b``).
    """
    suites = [_verdict(result), *(_phase(result, phase) for phase in PHASES)]
    root = _counted(ET.Element("testsuites", name="dumpdiff"), [suite for suite in suites if len(suite)])
    ET.indent(root)
    ET.ElementTree(root).write(stream, encoding="utf-8", xml_declaration=True)
    stream.write(b"\n")


def _verdict(result: Result) -> ET.Element:
    """One case: whether enough could be compared; so no report is empty, which CI servers take for success."""
    lines = [f"{role}: {described(side.source)}, {side.source.path}" for role, side in roles(result)]
    for role, phases in result.coverage.items():
        for phase, figures in phases.items():
            if figures["ops"]:
                compared = f"{figures['compared']:g} of {figures['ops']:g} ops compared"
                lines.append(f"{role}, {phase}: {compared}, {percent(figures['share'])}")
    case = _case("dumpdiff", "enough could be compared", lines)
    if result.verdict == "inconclusive":
        _outcome(case, "error", headline(result), "inconclusive", result.notes)
    return _counted(ET.Element("testsuite", name="coverage"), [case])


def _phase(result: Result, phase: str) -> ET.Element:
    findings = [finding for finding in result.findings if finding.phase == phase]
    cases = [_failed(finding, believed=result.verdict == "diverged") for finding in findings]
    rows = result.pairs[(result.pairs["phase"] == phase).to_numpy(dtype=bool)]
    layers = pd.Series([layer_of(scope) for scope in rows["scope"]], dtype=object, index=rows.index)
    at_fault = {layer_of(finding.scope) for finding in findings}
    cases += [
        _layer(phase, str(layer), of_layer)
        for layer, of_layer in rows.groupby(layers, sort=False)
        if layer not in at_fault
    ]
    return _counted(ET.Element("testsuite", name=phase), cases)


def layer_of(scope: str) -> str:
    """The layer, or module outside of layers, that a canonical scope is in.

    >>> layer_of("layers.1.attention.q"), layer_of("final_norm"), layer_of("")
    ('layers.1', 'final_norm', 'outside of layers')
    """
    first, _, below = scope.partition(".")
    number = below.partition(".")[0]
    return f"{first}.{number}" if number.isdigit() else first or _OUTSIDE


def _layer(phase: str, layer: str, pairs: pd.DataFrame) -> ET.Element:
    states = pairs["state"].value_counts()
    errors = pairs["error"].to_numpy(dtype=float)
    worst = number(float(np.fmax.reduce(errors, initial=0.0)))  # the largest that is a number
    said = f"{', '.join(f'{count} {state}' for state, count in states.items())}; largest error {worst}"
    case = _case(f"dumpdiff.{phase}", layer, [said])
    if set(states.index) - {"agreeing", "incomparable"}:
        _outcome(case, "skipped", f"follows from what parts before: {said}")
    elif "agreeing" not in states.index:
        _outcome(case, "skipped", f"nothing could be compared: {said}")
    return case


def _failed(finding: Finding, *, believed: bool) -> ET.Element:
    """A failed case; a skipped one where the two may not even be dumps of one model."""
    ops = [names[-1] if names else "nothing" for names in (finding.target_ops, finding.reference_ops)]
    slot = f", {finding.slots[0][0]}" if finding.slots else ""
    case = _case(f"dumpdiff.{finding.phase}", f"{finding.scope or _OUTSIDE}: {ops[0]} vs {ops[1]}{slot}", ())
    lines = [
        f"finding {finding.rank}, {finding.confidence:.0%} sure, tolerance {number(finding.tolerance)}",
        *(f"{role} {line}" for role, line in finding.source.items()),
        *(f"{name} {number(value)}" for name, value in finding.metrics.items()),
        *finding.evidence,
        *(f"why ({cause.name}): {cause.text}" for cause in finding.causes),
    ]
    if believed:
        _outcome(case, "failure", finding.title, finding.kind, lines)
    else:
        _outcome(case, "skipped", f"not to be relied on, since inconclusive: {finding.title}", finding.kind, lines)
    return case


def _case(classname: str, name: str, said: Sequence[str]) -> ET.Element:
    case = ET.Element("testcase", classname=printable(classname), name=printable(name), time="0")
    if said:
        ET.SubElement(case, "system-out").text = _text(said)
    return case


def _outcome(case: ET.Element, outcome: Outcome, message: str, kind: str = "", lines: Sequence[str] = ()) -> None:
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
