"""The result as a JUnit report, so that a CI server shows what was compared and what parts.

Findings are failed cases; layers that agree are passed ones; those that disagree because of what came before are
skipped ones, since nothing is said against them; and that too little could be compared is an error.
"""

from __future__ import annotations

from typing import IO
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd

from ...model.formatting import number, percent
from ...model.result import Finding, Result
from ...model.trace import PHASES
from ..formats.junit import ends, suite, testcase, write_suites
from .summary import described, headline, roles

_OUTSIDE = "outside of layers"  #: the case of values whose place in the model is not known


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same result gives the same bytes.

    What XML cannot hold, control characters say, is escaped as in Python (``\\x1b``).
    """
    write_suites([_verdict(result), *(_phase(result, phase) for phase in PHASES)], stream)


def _verdict(result: Result) -> ET.Element:
    """One case: whether enough could be compared; so no report is empty, which CI servers take for success."""
    lines = [
        f"{role}: {described(side.source)}, {side.source.path}" for role, side in roles(result)
    ]
    for role, phases in result.coverage.items():
        for phase, figures in phases.items():
            if figures["ops"]:
                compared = f"{figures['compared']:g} of {figures['ops']:g} ops compared"
                lines.append(f"{role}, {phase}: {compared}, {percent(figures['share'])}")
    case = testcase("dumpdiff", "enough could be compared", lines)
    if result.verdict == "inconclusive":
        ends(case, "error", headline(result), "inconclusive", result.notes)
    return suite("coverage", [case])


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
    return suite(phase, cases)


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
    said = (
        f"{', '.join(f'{count} {state}' for state, count in states.items())}; largest error {worst}"
    )
    case = testcase(f"dumpdiff.{phase}", layer, [said])
    if set(states.index) - {"agreeing", "incomparable"}:
        ends(case, "skipped", f"follows from what parts before: {said}")
    elif "agreeing" not in states.index:
        ends(case, "skipped", f"nothing could be compared: {said}")
    return case


def _failed(finding: Finding, *, believed: bool) -> ET.Element:
    """A failed case; a skipped one where the two may not even be dumps of one model."""
    ops = [
        names[-1] if names else "nothing" for names in (finding.target_ops, finding.reference_ops)
    ]
    slot = f", {finding.slots[0][0]}" if finding.slots else ""
    case = testcase(
        f"dumpdiff.{finding.phase}", f"{finding.scope or _OUTSIDE}: {ops[0]} vs {ops[1]}{slot}", ()
    )
    lines = [
        f"finding {finding.rank}, {finding.confidence:.0%} sure, tolerance {number(finding.tolerance)}",
        *(f"{role} {line}" for role, line in finding.source.items()),
        *(f"{name} {number(value)}" for name, value in finding.metrics.items()),
        *finding.evidence,
        *(f"why ({cause.name}): {cause.text}" for cause in finding.causes),
    ]
    if believed:
        ends(case, "failure", finding.title, finding.kind, lines)
    else:
        ends(
            case,
            "skipped",
            f"not to be relied on, since inconclusive: {finding.title}",
            finding.kind,
            lines,
        )
    return case
