"""The first line of an answer: verdict, module, cause, file and line.

It is what ``-q`` prints and what a log or a commit status shows, so it is short, and it counts what
makes the answer doubtful. The sentences about all this follow in the reports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...model.finding import Finding
from ...model.formatting import escape_control, format_number
from ...model.result import Result
from ..language import translate
from ..sentences import translate_sentence
from .state_counts import list_state_rows

MAX_LENGTH: Final = 100
#: What a sentence that is cut does not end with.
_JOINT_CHARACTERS = " ,;:(，；：（"  # noqa: RUF001 - Chinese punctuation
_MIN_NAME = 16  #: characters of a name that always remain
#: Kinds of findings whose name says nothing that the verdict does not say.
_PLAIN_KINDS = ("introduced", "region")


def format_first_line(result: Result) -> str:
    """Return the answer in at most :data:`MAX_LENGTH` characters.

    >>> format_first_line(result)  # doctest: +SKIP
    'diverged: layers.1.post_norm: epsilon, target is wrong; model.py:22; 2 problems'
    """
    label = format_label(result.verdict, is_doubtful=bool(result.weaknesses))
    n_problems = len(result.target.problems) + len(result.reference.problems)
    remarks = [format_problem_count(n_problems)]
    first = result.first_divergence
    if result.verdict == "diverged" and first is not None:
        return format_divergence(label, first, remarks)
    if result.verdict == "inconclusive" and result.notes:
        return format_sentence(label, translate_sentence(result.notes[0]), remarks)
    n_differing = sum(result.count_differing_values().values())
    differing = translate("{count} beyond tolerance", count=n_differing) if n_differing else ""
    return format_shares(label, list_lowest_shares(result), [differing, *remarks])


def format_label(verdict: str, *, is_doubtful: bool) -> str:
    """Return the verdict, and whether something makes it doubtful."""
    if is_doubtful and verdict != "inconclusive":
        return translate("{verdict}, in doubt", verdict=translate(verdict))
    return translate(verdict)


def format_problem_count(number: int) -> str:
    """Return '1 problem', '2 problems', '' for none."""
    if number == 1:
        return translate("1 problem")
    return translate("{count} problems", count=number) if number else ""


def format_divergence(label: str, finding: Finding, remarks: Iterable[str], place: str = "") -> str:
    """Return verdict, place, module, cause, file and line; ``place`` is ranks and steps."""
    module = escape_control(finding.scope or _name_op(finding))
    colon = translate(": ")
    head = f"{label}{colon}{place}{colon}" if place else f"{label}{colon}"
    clauses = filter(None, (_format_cause(finding), _find_line(finding), *remarks))
    tail = translate("; ").join(clauses)
    room = MAX_LENGTH - len(head) - len(colon) - len(tail)
    return cut(f"{head}{shorten_name(module, room)}{colon}{tail}", MAX_LENGTH)


def format_sentence(label: str, sentence: str, remarks: Iterable[str]) -> str:
    """Return the label, if there is one, and a sentence, which is cut if it is long."""
    ending = _format_ending(remarks)
    answer = cut(join_label(label, escape_control(sentence)), MAX_LENGTH - len(ending))
    return f"{answer}{ending}"


def join_label(label: str, sentence: str) -> str:
    """Return a sentence after its label, if it has one."""
    return f"{label}{translate(': ')}{sentence}" if label else sentence


def format_shares(
    label: str, shares: Mapping[str, float], remarks: Iterable[str], place: str = ""
) -> str:
    """Return the label and the share of values that was compared in each phase."""
    ending = _format_ending(remarks)
    head = f"{label}{translate(': ')}"
    if place:
        head += f"{place}{translate('; ')}"
    if not shares:
        return f"{head}{translate('nothing compared')}{ending}"
    # whole percents, rounded down: the sentence that follows has the tenths
    percents = {translate(phase): math.floor(share * 100) for phase, share in shares.items()}
    phases = translate(", ").join(f"{phase} {percent} %" for phase, percent in percents.items())
    for words in (
        translate("values compared: {phases}", phases=phases),
        translate("{phases} compared", phases=phases),
    ):
        if len(f"{head}{words}{ending}") <= MAX_LENGTH:
            return f"{head}{words}{ending}"
    first, *others = percents.items()
    words = translate(
        "{phase} {percent} % compared, every other phase at least {lowest} %",
        phase=first[0], percent=first[1], lowest=min(percent for _, percent in others or [first]),
    )  # fmt: skip
    return cut(f"{head}{words}{ending}", MAX_LENGTH)


def _format_ending(remarks: Iterable[str]) -> str:
    """Return the remarks that are not empty, each after a joint."""
    return "".join(f"{translate('; ')}{remark}" for remark in remarks if remark)


def shorten_name(name: str, length: int) -> str:
    """Return the end of a name, from one of its separators on.

    >>> shorten_name("backbone.layers.1.attention.query_key_norm", 24)
    '….attention.query_key_norm'
    """
    if len(name) <= length:
        return name
    rest = name[-max(length - 1, _MIN_NAME) :]
    separator = re.search(r"[./]", rest)
    return f"…{rest[separator.start() :] if separator else rest}"


def cut(text: str, length: int) -> str:
    """Return a text that is cut at a blank if it is too long.

    Chinese sentences have few blanks: where none is in the second half, it is cut anywhere.
    """
    if len(text) <= length:
        return text
    end = max(text.rfind(" ", length // 2, length - 1), 0) or length - 2
    return f"{text[:end].rstrip(_JOINT_CHARACTERS)} …"


def _format_cause(finding: Finding) -> str:
    """Return the name of the cause and the wrong side; without a cause, what differs."""
    words: list[str] = []
    if finding.causes:
        words.append(translate(finding.causes[0].name))
    elif finding.kind not in _PLAIN_KINDS:
        words.append(translate(finding.kind))
    if finding.side == "target":
        words.append(translate("target is wrong"))
    elif finding.side == "reference":
        words.append(translate("reference is wrong"))
    if not finding.causes and "error" in finding.metrics:
        words.append(translate("error {error}", error=format_number(finding.metrics["error"])))
    return translate(", ").join(words) or translate(finding.kind)


def _find_line(finding: Finding) -> str:
    """Return file and line of the wrong side's code, without folders."""
    sides = ("reference", "target") if finding.side == "reference" else ("target", "reference")
    for side in sides:
        if finding.source.get(side):
            return escape_control(re.split(r"[/\\]", finding.source[side])[-1])
    return ""


def _name_op(finding: Finding) -> str:
    ops: Sequence[str] = finding.target_ops or finding.reference_ops
    return ops[-1] if ops else finding.phase


def list_lowest_shares(result: Result) -> dict[str, float]:
    """Return for each phase the lower share of both sides; 0 if one side did not record it."""
    shares = {}
    for row in list_state_rows(result):
        if row.unit == "values":
            shares[row.phase] = 0.0 if 0 in row.totals else min(row.shares)
    return shares
