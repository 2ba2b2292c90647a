"""The first line of an answer about a run: also ranks and steps, and how many were not read."""

from __future__ import annotations

from ...model.run_result import RunFinding, RunResult, format_place
from ..alignment.first_line import (
    MAX_LENGTH,
    format_divergence,
    format_label,
    format_problem_count,
    format_sentence,
    format_shares,
)
from ..language import translate
from ..sentences import translate_sentence
from .summary import format_scope, list_lowest_shares


def format_first_line(result: RunResult) -> str:
    """Return the answer in at most ``MAX_LENGTH`` characters.

    >>> format_first_line(result)  # doctest: +SKIP
    'diverged: rank 3 (tp 1), step 0: layers.1.input_norm: error 1.2e-1; model.py:22; 2 not read'
    """
    label = format_label(result.verdict, is_doubtful=any(task.weaknesses for task in result.tasks))
    n_left_out = len(result.unpaired) + len(result.unread)
    remarks = [
        translate("{count} not read", count=n_left_out) if n_left_out else "",
        format_problem_count(count_problems(result)),
    ]
    first = result.first_divergence
    if result.verdict == "diverged" and first is not None:
        place = translate_sentence(first.place)
        line = format_divergence(label, first.finding, remarks, place)
        if "…" in line:  # the coordinates of the rank are in the sentence below
            line = format_divergence(label, first.finding, remarks, _shorten_place(first))
        return line
    if result.verdict == "diverged":
        task = next(task for task in result.tasks if task.verdict == "diverged")
        headline = translate_sentence(task.headline)
        place = f"{label}{translate(': ')}{translate_sentence(task.place)}"
        return format_sentence(place, headline, remarks)
    if result.verdict == "inconclusive" and result.notes:
        return format_sentence(label, translate_sentence(result.notes[0]), remarks)
    return format_shares(label, list_lowest_shares(result), remarks, format_scope(result))


def count_problems(result: RunResult) -> int:
    """Return the number of problems while reading, of all ranks and steps."""
    number = 0
    for task in result.tasks:
        for side in (task.target, task.reference):
            number += 0 if side is None else len(side.problems)
    return number


def _shorten_place(finding: RunFinding) -> str:
    """Return ranks and step without the place of the ranks in the layout."""
    place = format_place(finding.ranks, (finding.step,))
    if len(place) < MAX_LENGTH // 3:
        return translate_sentence(place)
    return translate("{count} ranks", count=len(finding.ranks))
