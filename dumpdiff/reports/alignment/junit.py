"""The result as a JUnit report: a CI server shows what was compared and what diverges.

Findings are failed cases. Layers that agree are passed cases. Layers that differ only because of an
earlier divergence are skipped cases. An inconclusive result is an error: too little was compared,
or a record contradicts what was computed from it. Such an isolated difference is a failed case,
too: it is a fact about two records, however little else was compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd

from ...model.finding import Finding
from ...model.formatting import format_number, format_percent
from ...model.result import Result
from ...model.trace import PHASES
from ...model.verdict import DIFFERING_STATES
from ..formats.junit import build_case, build_suite, set_outcome, write_suites
from .state_counts import SIDES, StateRow, list_reasons, list_state_rows
from .summary import format_headline, format_source, label_sides

_OUTSIDE = "outside of layers"  #: the case of values whose place in the model is not known


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same result gives the same bytes.

    Control characters, which XML cannot hold, are escaped as in Python (``\\x1b``).
    """
    write_suites(build_suites(result), stream)


def build_suites(result: Result) -> list[ET.Element]:
    """Return the suite of the coverage, and one for each phase."""
    phase_suites = [_build_phase_suite(result, phase) for phase in PHASES]
    return [_build_coverage_suite(result), *phase_suites]


def _build_coverage_suite(result: Result) -> ET.Element:
    """Return one case: whether enough could be compared.

    It keeps a report from being empty, which CI servers take for success.
    """
    lines = []
    for side_name, side in label_sides(result):
        lines.append(f"{side_name}: {format_source(side.source)}, {side.source.path}")
    rows = list_state_rows(result)
    for side_number, side_name in enumerate(SIDES):
        lines += _list_state_lines(rows, side_number, side_name)
    for reason in list_reasons(result.uncompared, result.unmatched):
        for side_number, side_name in enumerate(SIDES):
            counts = (reason.values[side_number], reason.ops[side_number])
            if any(counts):
                amount = f"{counts[0]} values and {counts[1]} ops not compared"
                lines.append(f"{side_name}: {amount}: {reason.reason}")
    case = build_case("dumpdiff", "enough could be compared", lines)
    if result.verdict == "inconclusive":
        set_outcome(case, "error", format_headline(result), "inconclusive", result.notes)
    return build_suite("coverage", [case])


def _list_state_lines(
    rows: tuple[StateRow, ...], side_number: int, side_name: str
) -> Iterator[str]:
    """Yield a line on the values, and one on the ops, of each phase of a side."""
    for row in rows:
        if row.totals[side_number]:
            share = format_percent(row.shares[side_number])
            counts = [
                f"{pair[side_number]} {state}"
                for state, pair in row.counts.items()
                if pair[side_number]
            ]
            yield f"{side_name}, {row.phase} {row.unit}: {share} compared; {', '.join(counts)}"


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
    return f"{module}.{number_}" if number_.isdecimal() else module or _OUTSIDE


def _build_layer_case(phase: str, layer: str, pairs: pd.DataFrame) -> ET.Element:
    states = pairs["state"].value_counts()
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    errors = pairs["error"].to_numpy(dtype=float)
    largest_error = float(np.fmax.reduce(errors, initial=0.0))  # NaN does not count
    summary = f"{counts}; largest error {format_number(largest_error)}"
    case = build_case(f"dumpdiff.{phase}", layer, [summary])
    if "isolated" in states.index:
        set_outcome(case, "failure", f"differs without consequence: {summary}", "isolated")
    elif set(states.index).intersection(DIFFERING_STATES):
        set_outcome(case, "skipped", f"follows from an earlier divergence: {summary}")
    elif "agreeing" not in states.index:
        set_outcome(case, "skipped", f"nothing could be compared: {summary}")
    return case


def _build_finding_case(finding: Finding, *, is_reliable: bool) -> ET.Element:
    """Return a failed case; a skipped one if the two may not even be dumps of one model.

    An isolated difference is a failed case even then.
    """
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
    if is_reliable or finding.kind == "isolated":
        set_outcome(case, "failure", finding.title, finding.kind, lines)
    else:
        message = f"not reliable, since the result is inconclusive: {finding.title}"
        set_outcome(case, "skipped", message, finding.kind, lines)
    return case
