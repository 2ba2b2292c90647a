"""The report that a person reads in a terminal: the verdict first, then the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pandas as pd
from rich import box
from rich.cells import set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...model.finding import Cause, Finding
from ...model.formatting import escape_control, format_number, format_percent
from ...model.result import Baseline, Result
from ..formats.wrapping import WrappedText
from ..language import translate, use_chosen_language
from ..sentences import translate_sentence
from .first_line import format_first_line
from .state_counts import (
    SIDES,
    format_pair,
    list_occurring_states,
    list_reasons,
    list_state_rows,
)
from .summary import (
    format_differing_values,
    format_headline,
    format_side,
    format_source,
    label_sides,
)

COLORS = {"aligned": "bold green", "diverged": "bold red", "inconclusive": "bold yellow"}
_FINDING_INDENT = 4  #: blanks before the lines of a finding, below its number
_LABEL_WIDTH = 11  #: columns of a console, before the description of a dump
_SHORT = 3  #: problems, and ops of a region, that are shown without -v
_ANY_WIDTH = 10_000  #: columns; wider than any table
_UNITS = ("values", "ops")
#: Columns of the lists of what was not compared, see ``UNCOMPARED_COLUMNS``, ``UNMATCHED_COLUMNS``.
_VALUE_COLUMNS = ("op", "slot", "phase", "scope", "state", "reason")
_VOCABULARY_COLUMNS = ("phase", "state", "reason")  #: with words that are translated
_OP_COLUMNS = ("op", "kind", "phase", "scope", "reason")


@dataclass(frozen=True)
class View:
    """Which part of a result is printed.

    It has no effect on other outputs and on the exit code.
    """

    limit: int = 10  #: findings, and with verbose values and ops of each side not compared
    phase: str | None = None
    scope: str | None = None  #: a shell pattern on the canonical scope: layers.1.*
    quiet: bool = False  #: only the headline
    #: also evidence, learned equivalences, every value that was not compared, every problem
    verbose: bool = False

    def shows(self, phase: str, scope: str) -> bool:
        """Return whether something of this phase and scope is printed."""
        if self.phase not in (None, phase):
            return False
        return self.scope is None or fnmatchcase(scope, self.scope)


ALL = View()


@use_chosen_language()
def write(result: Result, console: Console, view: View = ALL) -> None:
    """Print the report; the first line is the short answer, unbroken on any console."""
    first_line = Text(format_first_line(result), style=COLORS[result.verdict])
    console.print(first_line, soft_wrap=True)
    if view.quiet:
        return
    console.print()
    if result.verdict != "diverged" or result.weaknesses or not result.findings:
        # of a plain divergence the first finding says it
        console.print(WrappedText(format_headline(result)))
        console.print()
    for side_name, side in label_sides(result):
        _write_dump(side_name, format_side(side), console)
    if result.baseline is not None:
        _write_dump("baseline", _format_baseline(result.baseline), console)
    for part in _build_parts(result, view, console):
        console.print()
        console.print(part)


@use_chosen_language()
def write_finding(finding: Finding, console: Console) -> None:
    """Print one finding in full, with everything that explains it."""
    heading = translate("finding {number} ({id})", number=finding.rank, id=finding.id)
    console.print(Text(heading, style="bold"))
    for line in _list_details(finding, View(verbose=True), indent=2):
        console.print(line)


def _write_dump(side_name: str, description: str, console: Console) -> None:
    console.print(Text.assemble((label_line(side_name), "bold"), description), soft_wrap=True)


def _build_parts(result: Result, view: View, console: Console) -> Iterator[RenderableType]:
    if result.findings:
        yield from _build_findings(result.findings, view)
    if result.states:
        yield _build_states(result, view, console)
    differing_values = result.count_differing_values()
    if "reconverged" in differing_values:
        yield WrappedText(format_differing_values(differing_values))
    uncompared = _select_places(result.uncompared, view)
    unmatched = _select_places(result.unmatched, view)
    if len(uncompared) or len(unmatched):
        yield _count_reasons(uncompared, unmatched)
    if view.verbose and len(uncompared):
        yield _list_rows(translate("values not compared"), uncompared, _VALUE_COLUMNS, view)
    if view.verbose and len(unmatched):
        yield _list_rows(translate("ops not compared"), unmatched, _OP_COLUMNS, view)
    if view.verbose and result.learned:
        yield _build_learned(result)
    if view.verbose and "layouts" in result.details:
        yield _build_layouts(result)
    if result.notes:
        yield build_list(translate("notes"), list(map(translate_sentence, result.notes)))
    if result.target.problems or result.reference.problems:
        yield _build_problems(result, view)


def _format_baseline(baseline: Baseline) -> str:
    """Describe in one line how far the reference's two runs differ, and where."""
    if baseline.values:
        median, largest = format_number(baseline.median), format_number(baseline.largest)
        largest_op = escape_control(baseline.largest_op)
        spread = translate(
            "spread of {count:,} values, median {median}, largest {largest} ({op})",
            count=baseline.values,
            median=median,
            largest=largest,
            op=largest_op,
        )
    else:
        spread = translate("no value of the reference")
    source, path = format_source(baseline.source), escape_control(baseline.source.path)
    return f"{source}{translate(': ')}{spread}{translate(', ')}{path}"


def _build_findings(findings: Sequence[Finding], view: View) -> Iterator[RenderableType]:
    matching_findings = [f for f in findings if view.shows(f.phase, f.scope)]
    printed_findings = matching_findings[: view.limit]
    for finding in printed_findings:
        heading = f"{finding.rank}. {format_measure(finding.kind, finding)}"
        yield Group(
            WrappedText(heading, hanging=4), *_list_details(finding, view, indent=_FINDING_INDENT)
        )
    if len(printed_findings) < len(findings):
        n_printed, n_all = len(printed_findings), len(findings)
        message = translate("{shown} of {total} findings shown", shown=n_printed, total=n_all)
        n_filtered = len(findings) - len(matching_findings)
        if n_filtered:
            message += translate(", {count} are of another phase or scope", count=n_filtered)
        n_beyond = len(matching_findings) - len(printed_findings)
        if n_beyond:
            message += translate(
                ", {count} are beyond --limit {limit}", count=n_beyond, limit=view.limit
            )
        yield Text(message)


def format_measure(kind: str, finding: Finding) -> str:
    """Return what was found, how large it is, and how certain that is."""
    clauses = [translate("{kind} in {phase}", kind=translate(kind), phase=translate(finding.phase))]
    if "error" in finding.metrics:
        clauses.append(translate("error {error}", error=format_number(finding.metrics["error"])))
        tolerance = format_number(finding.tolerance)
        clauses.append(translate("tolerance {tolerance}", tolerance=tolerance))
    percent = finding.confidence * 100
    clauses.append(translate("{percent:.0f} % sure that the runs diverge here", percent=percent))
    return translate(", ").join(clauses)


def _list_details(finding: Finding, view: View, indent: int) -> Iterator[WrappedText]:
    """Yield the title, then all facts that are not in it, with full names to copy."""
    title, *details = map(escape_control, _list_facts(finding, view))
    yield WrappedText(title, "bold", indent)
    for line in details:
        yield WrappedText(line, indent=indent, hanging=2)


def _list_facts(finding: Finding, view: View) -> list[str]:
    lines = [translate_sentence(finding.title)]
    if finding.scope and finding.scope not in finding.title:
        lines.append(translate("scope: {scope}", scope=finding.scope))
    for side_name, ops in (("target", finding.target_ops), ("reference", finding.reference_ops)):
        if any(op not in finding.title for op in ops):
            listed_ops = ops if view.verbose else _shorten_ops(ops)
            lines.append(f"{translate(side_name)}{translate(': ')}{', '.join(listed_ops)}")
    if finding.slots:
        slots = [f"{target} vs {reference}" for target, reference in finding.slots]
        lines.append(translate("slots: {slots}", slots=", ".join(slots)))
    if finding.source:
        lines.append(format_source_lines(finding))
    lines += _list_causes(finding, view)
    if view.verbose:
        metrics = [f"{name} {format_number(value)}" for name, value in finding.metrics.items()]
        evidence = translate("; ").join(map(translate_sentence, finding.evidence))
        lines.append(", ".join(metrics))
        lines.append(translate("evidence: {evidence}", evidence=evidence))
        lines.append(f"id: {finding.id}")
    return lines


def format_source_lines(finding: Finding) -> str:
    """Return file and line of the code of each side that recorded them."""
    sources = [f"{translate(side_name)} {line}" for side_name, line in finding.source.items()]
    return translate("source: {lines}", lines=translate(", ").join(sources))


def _list_causes(finding: Finding, view: View) -> list[str]:
    """Return the best cause, all of them with -v; or why there is none."""
    if finding.unexplained:
        return [translate("why: {reason}", reason=translate_sentence(finding.unexplained))]
    causes = finding.causes if view.verbose else finding.causes[:1]
    lines = []
    for index, cause in enumerate(causes):
        word = translate("or") if index else translate("why")
        lines.append(format_cause(word, cause))
    return lines


def format_cause(word: str, cause: Cause) -> str:
    """Return a cause after a translated word, such as 'why'."""
    text = translate_sentence(cause.text)
    return translate("{word} ({cause}): {text}", word=word, cause=translate(cause.name), text=text)


def _shorten_ops(ops: Sequence[str]) -> list[str]:
    """Return a region's two ends and the number of ops between them."""
    if len(ops) <= _SHORT:
        return list(ops)
    return [ops[0], translate("... {count} more ...", count=len(ops) - 2), ops[-1]]


def _build_states(result: Result, view: View, console: Console) -> RenderableType:
    """Return the states of all values and ops, of the target and of the reference.

    They are a table, or on a console that is too narrow for its columns, sentences.
    """
    rows = [row for row in list_state_rows(result) if view.phase in (None, row.phase)]
    states = list_occurring_states(tuple(rows))
    title, compared = translate("target / reference"), translate("compared")
    headings = [translate(state) for state in states]
    table = _build_table(title, compared, *headings, numeric=(compared, *headings))
    sentences = []
    for row in rows:
        label = f"{translate(row.phase)} {translate(row.unit)}"
        shares = " / ".join(map(format_percent, row.shares))
        counts = [format_pair(row.counts[state]) for state in states]
        table.add_row(label, shares, *counts)
        words = [f"{state} {count}" for state, count in zip(headings, counts, strict=True) if count]
        counted_states = translate(", ").join([f"{compared} {shares}", *words])
        sentences.append(f"{label}{translate(': ')}{counted_states}")
    wide_options = console.options.update(max_width=_ANY_WIDTH)
    if console.measure(table, options=wide_options).maximum <= console.width:
        return table
    return build_list(title, sentences)


def _select_places(table: pd.DataFrame, view: View) -> pd.DataFrame:
    places = zip(table["phase"], table["scope"], strict=True)
    is_shown = [view.shows(phase, scope) for phase, scope in places]
    return table[pd.Series(is_shown, index=table.index, dtype=bool)]


def _count_reasons(uncompared: pd.DataFrame, unmatched: pd.DataFrame) -> Table:
    """Return a table of how many values and ops were not compared, and why."""
    units = [translate(unit) for unit in _UNITS]
    title = translate("not compared, target / reference")
    table = _build_table(title, *units, numeric=units)
    for row in list_reasons(uncompared, unmatched):
        table.add_row(
            WrappedText(escape_control(translate(row.reason))),
            format_pair(row.values),
            format_pair(row.ops),
        )
    return table


def _list_rows(title: str, rows: pd.DataFrame, columns: Sequence[str], view: View) -> Table:
    """Return a table of values or ops of each side that were not compared."""
    names = [translate("why" if column == "reason" else column) for column in columns]
    table = _build_table(title, *names)
    for side in SIDES:
        side_rows = rows.loc[rows["side"] == side, list(columns)]
        for row in side_rows.head(view.limit).itertuples(index=False):
            cells = []
            for column, cell in zip(columns, map(str, row), strict=True):
                text = translate(cell) if column in _VOCABULARY_COLUMNS else cell
                cells.append(WrappedText(escape_control(text)))
            table.add_row(translate(side), *cells)
        n_more = len(side_rows) - view.limit
        if n_more > 0:
            message = translate(
                "... {count} more, --limit {limit} shows them", count=n_more, limit=len(side_rows)
            )
            table.add_row(translate(side), message)
    return table


def _build_learned(result: Result) -> Table:
    occurrences = translate("occurrences")
    title = translate("learned equivalences: target")
    table = _build_table(title, translate("reference"), occurrences, numeric=(occurrences,))
    for equivalence in result.learned:
        target_kinds = WrappedText(escape_control(", ".join(equivalence.target)))
        reference_kinds = WrappedText(escape_control(", ".join(equivalence.reference)))
        table.add_row(target_kinds, reference_kinds, str(equivalence.count))
    return table


def _build_layouts(result: Result) -> Group:
    """Return how parameters and the outputs of modules are spread over ranks; the JSON has all."""
    lines: list[str] = []
    for side_name, rows in result.details["layouts"].items():
        for name, relation, count in rows:
            is_parameter = " " not in name
            if is_parameter or (": Module." in name and " output." in name):
                lines.append(f"{translate(side_name)} {name}: {relation} ({count})")
    return build_list(translate("spread over ranks"), lines)


def _build_problems(result: Result, view: View) -> Group:
    lines: list[str] = []
    for side_name, side in label_sides(result):
        # those that weaken the answer come first: only a few are shown
        problems = sorted(side.problems, key=lambda problem: not problem.weakens)
        lines += [f"{translate(side_name)} {problem}" for problem in problems]
    if not view.verbose and len(lines) > _SHORT:
        more = translate("... {count} more, -v shows them", count=len(lines) - _SHORT)
        lines = [*lines[:_SHORT], more]
    return build_list(translate("problems"), lines)


def label_line(word: str) -> str:
    """Return a translated word as wide as the other labels of its column on a console."""
    return set_cell_size(translate(word), _LABEL_WIDTH)


def build_list(title: str, lines: Sequence[str]) -> Group:
    """Return lines under a title."""
    items = [WrappedText(escape_control(line), indent=2, hanging=2) for line in lines]
    return Group(Text(title, style="bold"), *items)


def _build_table(*columns: str, numeric: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    return table
