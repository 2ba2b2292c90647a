"""The report a person reads in a terminal: the verdict first, the evidence under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pandas as pd
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ...model.formatting import number, percent, printable
from ...model.result import Baseline, Finding, Result
from .summary import described, headline, held, roles

_COLOUR = {"aligned": "bold green", "diverged": "bold red", "inconclusive": "bold yellow"}
_FEW = 3  #: problems, notes of a region and the like that are shown without -v


@dataclass(frozen=True)
class View:
    """What of a result is printed. The result itself, its JSON and CSV, and the exit code stay whole."""

    limit: int = 10  #: findings, and with verbose unmatched ops of each side
    phase: str | None = None
    scope: str | None = None  #: a shell pattern on the canonical scope: layers.1.*
    quiet: bool = False  #: the headline alone
    verbose: bool = False  #: also evidence, learned equivalences, unmatched ops, every problem

    def shows(self, phase: str, scope: str) -> bool:
        """Whether something of this phase and scope is printed."""
        return self.phase in (None, phase) and (
            self.scope is None or fnmatchcase(scope, self.scope)
        )


ALL = View()


def write(result: Result, console: Console, view: View = ALL) -> None:
    """Print the report; the first line is the verdict, unbroken however narrow the console is."""
    console.print(Text(headline(result), style=_COLOUR[result.verdict]), soft_wrap=True)
    if view.quiet:
        return
    console.print()
    for role, side in roles(result):
        console.print(Text.assemble((f"{role:<11}", "bold"), held(side)), soft_wrap=True)
    if result.baseline is not None:
        console.print(
            Text.assemble((f"{'baseline':<11}", "bold"), _baseline(result.baseline)), soft_wrap=True
        )
    for part in _parts(result, view):
        console.print()
        console.print(part)


def write_finding(finding: Finding, console: Console) -> None:
    """Print one finding in full, with everything that explains it."""
    console.print(
        Text.assemble((f"finding {finding.rank}: ", "bold"), _finding(finding, View(verbose=True)))
    )


def _parts(result: Result, view: View) -> Iterator[RenderableType]:
    if result.findings:
        yield from _findings(result.findings, view)
    yield _coverage(result, view)
    if len(result.unmatched):
        yield _unmatched(result.unmatched, view)
    if view.verbose and result.learned:
        yield _learned(result)
    if result.notes:
        yield _list("notes", result.notes)
    if result.target.problems or result.reference.problems:
        yield _problems(result, view)


def _baseline(baseline: Baseline) -> str:
    """One line: what the reference's two runs differ by, and where it is."""
    largest = f"largest {number(baseline.largest)} ({printable(baseline.largest_op)})"
    spread = f"spread of {baseline.values} values, median {number(baseline.median)}, {largest}"
    said = spread if baseline.values else "no value of the reference"
    return f"{described(baseline.source)}: {said}, {printable(baseline.source.path)}"


def _findings(findings: Sequence[Finding], view: View) -> Iterator[RenderableType]:
    wanted = [finding for finding in findings if view.shows(finding.phase, finding.scope)]
    shown = wanted[: view.limit]
    if shown:
        table = _table(
            "#",
            "kind",
            "phase",
            "finding",
            "error",
            "tolerance",
            "sure",
            right=("#", "error", "tolerance", "sure"),
        )
        for finding in shown:
            error = number(finding.metrics.get("error", float("nan")))
            what = _finding(finding, view)
            sure = f"{finding.confidence * 100:.0f} %"
            cells = (finding.kind, finding.phase, what, error, number(finding.tolerance), sure)
            table.add_row(str(finding.rank), *cells)
        yield table
    if len(shown) < len(findings):
        yield Text(
            f"{len(shown)} of {len(findings)} findings shown"
            + (
                f", {len(findings) - len(wanted)} are of another phase or scope"
                if len(wanted) < len(findings)
                else ""
            )
            + (
                f", {len(wanted) - len(shown)} are beyond --limit {view.limit}"
                if len(shown) < len(wanted)
                else ""
            )
        )


def _finding(finding: Finding, view: View) -> Text:
    """The title, then in full what the title does not already say: names are there to be copied."""
    lines = [finding.title]
    if finding.scope and finding.scope not in finding.title:
        lines.append(f"scope: {finding.scope}")
    for role, ops in (("target", finding.target_ops), ("reference", finding.reference_ops)):
        if any(op not in finding.title for op in ops):
            lines.append(f"{role}: {', '.join(ops if view.verbose else _ends(ops))}")
    if finding.slots:
        lines.append(
            f"slots: {', '.join(f'{target} vs {reference}' for target, reference in finding.slots)}"
        )
    if finding.source:
        lines.append(
            f"source: {', '.join(f'{role} {line}' for role, line in finding.source.items())}"
        )
    lines += _why(finding, view)
    if view.verbose:
        lines.append(
            ", ".join(f"{name} {number(value)}" for name, value in finding.metrics.items())
        )
        lines.append(f"evidence: {'; '.join(finding.evidence)}")
    first, *rest = (printable(line) for line in lines)
    return Text.assemble((first, "bold"), *(f"\n{line}" for line in rest), overflow="fold")


def _why(finding: Finding, view: View) -> list[str]:
    """The best cause, all of them with -v; or why there is none."""
    if finding.unexplained:
        return [f"why: {finding.unexplained}"]
    shown = finding.causes if view.verbose else finding.causes[:1]
    return [
        f"{'why' if i == 0 else 'or'} ({cause.name}): {cause.text}" for i, cause in enumerate(shown)
    ]


def _ends(ops: Sequence[str]) -> list[str]:
    """A region's two ends are what one has to look at; what lies between is counted."""
    if len(ops) <= _FEW:
        return list(ops)
    return [ops[0], f"... {len(ops) - 2} more ...", ops[-1]]


def _coverage(result: Result, view: View) -> Table:
    counts = ("ops", "compared", "healed")
    table = _table("coverage", "phase", *counts, "share", right=(*counts, "share"))
    for side, phases in result.coverage.items():
        for phase, figures in phases.items():
            if figures["ops"] and view.phase in (None, phase):
                table.add_row(
                    side,
                    phase,
                    *(f"{figures[name]:g}" for name in counts),
                    percent(figures["share"]),
                )
    return table


def _unmatched(unmatched: pd.DataFrame, view: View) -> Table:
    """How many ops of each side have no partner and why; with -v, which."""
    keep = [
        view.shows(phase, scope)
        for phase, scope in zip(unmatched["phase"], unmatched["scope"], strict=True)
    ]
    shown = unmatched[keep]
    if not view.verbose:
        table = _table("without a partner", "ops", "why", right=("ops",))
        for (side, reason), count in Counter(
            zip(shown["side"], shown["reason"], strict=True)
        ).most_common():
            table.add_row(side, str(count), _fold(reason))
        return table
    table = _table("without a partner", "op", "kind", "phase", "scope", "why")
    for side in ("target", "reference"):
        rows = shown.loc[shown["side"] == side, ["op", "kind", "phase", "scope", "reason"]]
        for row in rows.head(view.limit).itertuples(index=False):
            table.add_row(side, *(_fold(str(cell)) for cell in row))
        if len(rows) > view.limit:
            table.add_row(
                side, f"... {len(rows) - view.limit} more, --limit {len(rows)} shows them"
            )
    return table


def _learned(result: Result) -> Table:
    table = _table("learned: target", "reference", "seen", right=("seen",))
    for same in result.learned:
        table.add_row(
            _fold(", ".join(same.target)), _fold(", ".join(same.reference)), str(same.count)
        )
    return table


def _problems(result: Result, view: View) -> Text:
    said = [f"{role} {problem}" for role, side in roles(result) for problem in side.problems]
    shown = said if view.verbose else said[:_FEW]
    more = [f"... {len(said) - len(shown)} more, -v shows them"] if len(shown) < len(said) else []
    return _list("problems", [*shown, *more])


def _list(title: str, lines: Sequence[str]) -> Text:
    return Text.assemble(
        (title, "bold"), *(f"\n  {printable(line)}" for line in lines), overflow="fold"
    )


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _fold(text: str) -> Text:
    """Never markup, never cut: brackets in a name are part of it, and long names go on in the next line."""
    return Text(printable(text), overflow="fold")
