"""The result for an issue or a merge request, as GitHub and GitLab show it: short, the evidence folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from ... import __version__
from ...model.formatting import number, percent
from ...model.result import Finding, Result, Side
from ..formats.markdown import code, comment, details, items, prose, table
from .summary import described, headline, roles

_FINDINGS = 10  # in the table
_EXPLAINED = 3  # of them with all their evidence
_LISTED = 10  # notes, problems, and lines of evidence


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(result).encode("utf-8", errors="backslashreplace"))


def to_markdown(result: Result) -> str:
    """The report: answer, what was compared, findings, evidence, coverage, what could not be read.

    Names from the dumps are code, so that they mention nobody, link nowhere and break no table.
    """
    return comment(_parts(result))


def _parts(result: Result) -> Iterator[str]:
    label, _, answer = headline(result).partition(": ")
    yield f"**{label[0].upper()}{label[1:]}:** {prose(answer)}"
    if (first := result.first_divergence) is not None and first.causes:
        yield f"**Why ({code(first.causes[0].name)}):** {prose(first.causes[0].text)}"
    yield _compared(result)
    if result.findings:
        if result.verdict == "inconclusive":
            yield "What parts is listed, but too little was compared to rely on it."
        yield _findings(result.findings)
        for finding in result.findings[:_EXPLAINED]:
            yield details(f"Finding {finding.rank}: evidence", _some(tuple(_evidence(finding))))
    yield details("Coverage", _coverage(result))
    if result.notes:
        yield details("Notes", _some([prose(note) for note in result.notes]))
    if problems := [
        f"{role}: {prose(str(one))}" for role, side in roles(result) for one in side.problems
    ]:
        yield details("Problems found while reading", _some(problems))
    yield f"<sub>dumpdiff {__version__}</sub>"


def _compared(result: Result) -> str:
    rows = [(role, _source(side)) for role, side in roles(result)]
    if result.baseline is not None:
        source, largest = result.baseline.source, number(result.baseline.largest)
        rows.append(
            ("baseline", f"{prose(described(source))}: spread up to {largest}, {code(source.path)}")
        )
    return table(("side", "dump"), rows)


def _source(side: Side) -> str:
    return f"{prose(described(side.source))}: {side.ops} ops, {side.tensors} tensors, {code(side.source.path)}"


def _findings(findings: Sequence[Finding]) -> str:
    numbers = ("#", "error", "tolerance", "sure")
    header = ("#", "kind", "module", "target", "reference", "error", "tolerance", "sure")
    shown = table(header, [_row(finding) for finding in findings[:_FINDINGS]], right=numbers)
    more = len(findings) - _FINDINGS
    return shown + (f"\n\n{more} more findings." if more > 0 else "")


def _row(finding: Finding) -> tuple[str, ...]:
    error = number(finding.metrics.get("error", float("nan")))
    side = "" if finding.side in ("", "unknown") else f" ({finding.side} departs)"
    return (
        str(finding.rank),
        f"{finding.kind}, {prose(finding.phase)}{side}",
        code(finding.scope),
        _ends(finding.target_ops),
        _ends(finding.reference_ops),
        error,
        number(finding.tolerance),
        f"{finding.confidence * 100:.0f} %",
    )


def _ends(ops: Sequence[str]) -> str:
    """The op where values part; of a region also where it begins."""
    if len(ops) < 2:
        return code(ops[0]) if ops else "-"
    return f"{code(ops[0])} to {code(ops[-1])}"


def _evidence(finding: Finding) -> Iterator[str]:
    yield prose(finding.title)
    if finding.slots:
        yield f"parts in {', '.join(f'{code(target)} vs {code(reference)}' for target, reference in finding.slots)}"
    if finding.source:
        yield f"called from {', '.join(f'{code(line)} ({prose(role)})' for role, line in finding.source.items())}"
    if finding.metrics:
        yield ", ".join(
            f"{name.replace('_', ' ')} {number(value)}" for name, value in finding.metrics.items()
        )
    yield from map(prose, finding.evidence)
    yield from (f"explained by {code(cause.name)}: {prose(cause.text)}" for cause in finding.causes)
    if finding.unexplained:
        yield f"not explained: {prose(finding.unexplained)}"


def _coverage(result: Result) -> str:
    counts = ("ops", "compared", "healed")
    rows = [
        (role, phase, *(f"{figures[name]:g}" for name in counts), percent(figures["share"]))
        for role, phases in result.coverage.items()
        for phase, figures in phases.items()
        if figures["ops"]
    ]
    shown = table(("side", "phase", *counts, "share"), rows, right=(*counts, "share"))
    states = ", ".join(
        f"{count} {state}" for state, count in result.pairs["state"].value_counts().items()
    )
    alone = result.unmatched["side"].value_counts()
    without = ", ".join(
        f"{alone[role]} of the {role}" for role, _ in roles(result) if role in alone
    )
    return f"{shown}\n\nPairs: {states or 'none'}. Ops without a partner: {without or 'none'}."


def _some(lines: Sequence[str]) -> str:
    """A list of the first lines, which are Markdown already."""
    more = [f"{len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return items([*lines[:_LISTED], *more])
