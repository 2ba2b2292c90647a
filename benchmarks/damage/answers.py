"""What dumpdiff answers about a pair, and where the answer tells a damage."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import dumpdiff
from dumpdiff.model.errors import DumpError
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Trace
from dumpdiff.reports.alignment import text

#: Where an answer tells a damage, from the most to the least visible place.
EXIT_CODE = "exit code"  #: not ``aligned``: a finding, inconclusive, or input that cannot be used
TERMINAL = "terminal"  #: ``aligned``, but a line names or counts it
TABLES = "tables"  #: only the tables of the result, which a person reads when they have a reason
SILENT = "silent"  #: nowhere: ``aligned``, exit code 0
CRASHED = "crashed"  #: an exception that is no DumpError
LEVELS = (EXIT_CODE, TERMINAL, TABLES, SILENT, CRASHED)
REPORTED = (EXIT_CODE, TERMINAL, TABLES)
TOLD = (EXIT_CODE, TERMINAL)

#: Whether ``align`` can be asked to read all files.
CAN_VERIFY = "verify" in inspect.signature(dumpdiff.align).parameters

#: Words of lines and reasons that excuse a value in place of reporting it: they stand in the
#: answers about sound pairs, too.
_EXCUSES = ("reconverged", "missing edges were bridged")
#: A number that is not zero: a count that was zero and no longer is makes a new kind of line.
_NUMBER = re.compile(r"(?<![\w.])(?=[\d.,]*[1-9])\d[\d.,]*(?:e[-+]?\d+)?(?![\w.])")
_SPACES = re.compile(r"[ ─]+")
#: Fields of a result that the terminal prints as counts in tables.
_COUNTS = ("coverage", "states", "uncompared")
_WIDTH = 10_000  #: columns of the terminal: no name is broken


@dataclass(frozen=True)
class Answer:
    """The answer about one pair of dumps."""

    verdict: str  #: 'unusable' after a DumpError
    findings: frozenset[str]
    #: (target's op, slot, reference's op, slot) -> states
    states: dict[tuple[str, ...], frozenset[str]]
    #: ops without a partner and values that were not compared: side, op, reason
    unmatched: frozenset[tuple[str, str, str]]
    problems: frozenset[tuple[str, str]]  #: side, message
    lines: tuple[str, ...]  #: of the terminal
    read_files: frozenset[str]  #: whole tensors that were opened, as absolute paths
    counts: Mapping[str, Any]  #: fields of the result that count what was compared


def ask(
    target: Path, reference: Path, *, verify: bool = False, counts: Mapping[str, Any] | None = None
) -> Answer:
    """Return the answer of ``align``.

    ``counts``, those of the undamaged pair, are printed in place of the answer's own: one op more
    or less in a table of hundreds tells nobody anything.
    """
    options = {"verify": True} if verify else {}
    with _record_opened_files() as read_files:
        try:
            result = dumpdiff.align(target, reference, **options)
        except DumpError as error:
            nothing: frozenset = frozenset()
            return Answer("unusable", nothing, {}, nothing, nothing, (str(error),), nothing, {})
    printed = replace(result, **(counts or {}))
    output = io.StringIO()
    text.write(printed, Console(file=output, width=_WIDTH, force_terminal=False, no_color=True))
    return Answer(
        verdict=result.verdict,
        findings=frozenset(finding.id for finding in result.findings),
        states=_collect_states(result),
        unmatched=frozenset(_list_unmatched(result)),
        problems=frozenset(
            (side, str(problem))
            for side in ("target", "reference")
            for problem in getattr(result, side).problems
        ),
        lines=tuple(line.rstrip() for line in output.getvalue().splitlines() if line.strip()),
        read_files=frozenset(read_files),
        counts={name: getattr(result, name) for name in _COUNTS},
    )


def locate_damage(
    answer: Answer, clean: Answer, side: str, ops: Collection[str], file: str
) -> tuple[str, tuple[str, ...]]:
    """Return the level of an answer (see LEVELS) about a damage, and the lines that tell it.

    Parameters
    ----------
    answer, clean
        The answers about the damaged and about the undamaged pair.
    side
        The damaged side.
    ops
        The ops that read or write the damaged value.
    file
        Name of the damaged file.
    """
    if answer.verdict != clean.verdict or answer.findings - clean.findings:
        return EXIT_CODE, answer.lines[:1]
    lines = _list_telling_lines(answer, clean, ops, file)
    if lines:
        return TERMINAL, lines
    return (TABLES if _is_in_tables(answer, clean, side, ops, file) else SILENT), ()


def _list_telling_lines(
    answer: Answer, clean: Answer, ops: Collection[str], file: str
) -> tuple[str, ...]:
    """Return the lines that name an op of the value or its file, or say what is new.

    A line says something new if the undamaged pair's answer has none that differs from it only in
    numbers that are not zero.
    """
    clean_templates = {_make_template(line) for line in clean.lines}
    names = [*ops, file]
    telling_lines = []
    for line, next_line in zip(answer.lines, (*answer.lines[1:], ""), strict=True):
        if line in clean.lines or any(excuse in line for excuse in _EXCUSES):
            continue
        if _is_heading(line, next_line):
            continue
        is_named = any(name in line for name in names)
        if is_named or _make_template(line) not in clean_templates:
            telling_lines.append(line)
    return tuple(telling_lines)


def _is_in_tables(
    answer: Answer, clean: Answer, side: str, ops: Collection[str], file: str
) -> bool:
    """Return whether a row about an op of the value has a new state, reason or problem."""
    at = 0 if side == "target" else 2
    for pair, states in answer.states.items():
        if pair[at] in ops and states - {"agreeing"} - clean.states.get(pair, frozenset()):
            return True
    for row_side, op, reason in answer.unmatched - clean.unmatched:
        if row_side == side and op in ops and not any(excuse in reason for excuse in _EXCUSES):
            return True
    return any(
        problem_side == side and any(name in message for name in (*ops, file))
        for problem_side, message in answer.problems - clean.problems
    )


def _is_heading(line: str, next_line: str) -> bool:
    """Return whether a line is the title of a list ("notes") or the head of a table."""
    return len(line.split()) == 1 or not line.strip("─") or next_line.startswith("──")


def _make_template(line: str) -> str:
    return _SPACES.sub(" ", _NUMBER.sub("#", line))


def _list_unmatched(result: Result) -> Iterator[tuple[str, str, str]]:
    """Yield (side, op, reason) of ops without a partner and of values that were not compared."""
    yield from result.unmatched[["side", "op", "reason"]].itertuples(index=False, name=None)
    columns = ["side", "op", "slot", "reason"]
    for side, op, slot, reason in result.uncompared[columns].itertuples(index=False, name=None):
        yield side, op, f"{slot}: {reason}"


def _collect_states(result: Result) -> dict[tuple[str, ...], frozenset[str]]:
    columns = ["target_op", "target_slot", "reference_op", "reference_slot", "state"]
    states: dict[tuple[str, ...], frozenset[str]] = {}
    for *pair, state in result.pairs[columns].itertuples(index=False, name=None):
        states[tuple(pair)] = states.get(tuple(pair), frozenset()) | {state}
    return states


@contextmanager
def _record_opened_files() -> Iterator[set[str]]:
    """Yield a set that gets the path of every whole tensor that is read meanwhile."""
    opened: set[str] = set()
    read_array = Trace.array

    def read_and_note(trace: Trace, tensor: int):
        opened.add(str(Path(trace.source.path) / trace.tensors["file"].iat[tensor]))
        return read_array(trace, tensor)

    Trace.array = read_and_note  # type: ignore[method-assign]
    try:
        yield opened
    finally:
        Trace.array = read_array  # type: ignore[method-assign]
