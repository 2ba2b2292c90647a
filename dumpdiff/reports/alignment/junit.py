"""The result as a JUnit report: a CI server shows what was compared and what diverges.

Findings are failed cases. Layers that agree are passed cases. Layers that differ only because of an
earlier divergence are skipped cases. Too little compared is an error.
"""

from __future__ import annotations

from typing import IO
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd

from ...model.finding import Finding
from ...model.formatting import format_number, format_percent
from ...model.result import Result
from ...model.trace import PHASES
from ..formats.junit import build_case, build_suite, set_outcome, write_suites
from .summary import format_headline, format_source, label_sides

_OUTSIDE = "outside of layers"  #: the case of values whose place in the model is not known


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same result gives the same bytes.

    Control characters, which XML cannot hold, are escaped as in Python (``\\x1b``).
    """
    phase_suites = [_build_phase_suite(result, phase) for phase in PHASES]
    write_suites([_build_coverage_suite(result), *phase_suites], stream)


def _build_coverage_suite(result: Result) -> ET.Element:
    """Return one case: whether enough could be compared.

    It keeps a report from being empty, which CI servers take for success.
    """
    lines = []
    for side_name, side in label_sides(result):
        lines.append(f"{side_name}: {format_source(side.source)}, {side.source.path}")
    for side_name, phases in result.coverage.items():
        for phase, figures in phases.items():
            if figures["ops"]:
                compared = f"{figures['compared']:g} of {figures['ops']:g} ops compared"
                lines.append(
                    f"{side_name}, {phase}: {compared}, {format_percent(figures['share'])}"
                )
    case = build_case("dumpdiff", "enough could be compared", lines)
    if result.verdict == "inconclusive":
        set_outcome(case, "error", format_headline(result), "inconclusive", result.notes)
    return build_suite("coverage", [case])


def _build_phase_suite(result: Result, phase: str) -> ET.Element:
    """Return the findings of a phase, then the layers of it without a finding."""
    findings = [finding for finding in result.findings if finding.phase == phase]
    is_reliable = result.verdict == "diverged"
    cases = [_build_finding_case(finding, is_reliable=is_reliable) for finding in findings]
    rows = result.pairs[(result.pairs["phase"] == phase).to_numpy(dtype=bool)]
    layers = pd.Series(list(map(find_layer, rows["scope"])), dtype=object, index=rows.index)
    finding_layers = {find_layer(finding.scope) for finding in findings}
    for layer, layer_rows in rows.groupby(layers, sort=False):
        if layer not in finding_layers:
            cases.append(_build_layer_case(phase, str(layer), layer_rows))
    return build_suite(phase, cases)


def find_layer(scope: str) -> str:
    """Return the layer of a canonical scope, or its module if it is outside of layers.

    >>> find_layer("layers.1.attention.q"), find_layer("final_norm"), find_layer("")
    ('layers.1', 'final_norm', 'outside of layers')
    """
    module, _, path = scope.partition(".")
    number_ = path.partition(".")[0]
    return f"{module}.{number_}" if number_.isdigit() else module or _OUTSIDE


def _build_layer_case(phase: str, layer: str, pairs: pd.DataFrame) -> ET.Element:
    states = pairs["state"].value_counts()
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    errors = pairs["error"].to_numpy(dtype=float)
    largest_error = float(np.fmax.reduce(errors, initial=0.0))  # NaN does not count
    summary = f"{counts}; largest error {format_number(largest_error)}"
    case = build_case(f"dumpdiff.{phase}", layer, [summary])
    if set(states.index) - {"agreeing", "incomparable"}:
        set_outcome(case, "skipped", f"follows from an earlier divergence: {summary}")
    elif "agreeing" not in states.index:
        set_outcome(case, "skipped", f"nothing could be compared: {summary}")
    return case


def _build_finding_case(finding: Finding, *, is_reliable: bool) -> ET.Element:
    """Return a failed case; a skipped one if the two may not even be dumps of one model."""
    target_op, reference_op = (
        ops[-1] if ops else "nothing" for ops in (finding.target_ops, finding.reference_ops)
    )
    slot = f", {finding.slots[0][0]}" if finding.slots else ""
    name = f"{finding.scope or _OUTSIDE}: {target_op} vs {reference_op}{slot}"
    case = build_case(f"dumpdiff.{finding.phase}", name, ())
    confidence = f"confidence {finding.confidence:.0%}"
    lines = [
        f"finding {finding.rank}, {confidence}, tolerance {format_number(finding.tolerance)}",
        *(f"{side_name} {line}" for side_name, line in finding.source.items()),
        *(f"{metric} {format_number(value)}" for metric, value in finding.metrics.items()),
        *finding.evidence,
        *(f"why ({cause.name}): {cause.text}" for cause in finding.causes),
    ]
    if is_reliable:
        set_outcome(case, "failure", finding.title, finding.kind, lines)
    else:
        message = f"not reliable, since the result is inconclusive: {finding.title}"
        set_outcome(case, "skipped", message, finding.kind, lines)
    return case
