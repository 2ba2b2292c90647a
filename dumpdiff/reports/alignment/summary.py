"""One-line summaries of a result, a dump and its source."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...model.formatting import escape_control, format_number, format_percent
from ...model.result import Result, Side
from ...model.trace import Source
from ..language import translate
from ..sentences import translate_sentence
from .state_counts import SIDES, StateRow, list_state_rows


def format_headline(result: Result) -> str:
    """Return the verdict in one line.

    It names the first divergence, or says how many values of either side were compared and how many
    of them differ but reconverged, or why the result is inconclusive.

    >>> format_headline(result)  # doctest: +SKIP
    'aligned: values compared: forward 80 % (target), 98.2 % (reference); backward 94 %; noise 2e-7'
    """
    if result.verdict == "inconclusive" and result.notes:
        reason = escape_control(translate_sentence(result.notes[0]))
        return f"{translate('inconclusive')}{translate(': ')}{reason}"
    label, answer = _format_answer(result)
    if not result.weaknesses:
        return f"{label}{translate(': ')}{answer}"
    # what makes an answer doubtful comes before it: the end of a long line is not read
    doubts = escape_control(translate("; ").join(map(translate_sentence, result.weaknesses)))
    words = f"{label} {answer}" if result.verdict == "diverged" else answer
    verdict = translate(result.verdict)
    return translate(
        "{verdict}, but in doubt: {doubts}; {answer}", verdict=verdict, doubts=doubts, answer=words
    )


def _format_answer(result: Result) -> tuple[str, str]:
    """Return the answer as a label and the words after the colon."""
    if result.verdict == "diverged" and result.first_divergence is not None:
        title = translate_sentence(result.first_divergence.title)
        return translate("first divergence"), escape_control(title)
    shares = [format_shares(row) for row in list_state_rows(result) if row.unit == "values"]
    clauses = [translate("nothing compared")]
    if shares:
        clauses = [translate("values compared: {phases}", phases=translate("; ").join(shares))]
    differing_values = result.count_differing_values()
    if differing_values:
        clauses.append(format_differing_values(differing_values))
    if not math.isnan(result.noise_floor):
        clauses.append(translate("noise {noise}", noise=format_number(result.noise_floor)))
    return translate(result.verdict), translate("; ").join(clauses)


def format_shares(row: StateRow) -> str:
    """Describe how much of a phase was compared, the lower share first.

    >>> format_shares(row)  # doctest: +SKIP
    'forward 80 % (target), 98.2 % (reference)'
    """
    for other_side, total in zip(reversed(SIDES), row.totals, strict=True):
        if not total:
            return translate(
                "{phase} only recorded by the {side}",
                phase=translate(row.phase),
                side=translate(other_side),
            )
    sides = sorted(zip(row.shares, SIDES, strict=True), key=lambda pair: pair[0])
    percentages = [format_percent(share) for share, _ in sides]
    if percentages[0] == percentages[1]:
        return f"{translate(row.phase)} {percentages[0]}"
    parts = [
        translate("{share} ({side})", share=format_percent(share), side=translate(side))
        for share, side in sides
    ]
    return f"{translate(row.phase)} {translate(', ').join(parts)}"


def format_differing_values(counts: Mapping[str, int]) -> str:
    """Describe how many compared values are beyond their tolerance.

    >>> format_differing_values({"introduced": 1, "reconverged": 3})
    'compared values beyond tolerance: 1 introduced, 3 reconverged'
    """
    states = [f"{count} {translate(state)}" for state, count in counts.items()]
    counts_by_state = translate(", ").join(states)
    return translate("compared values beyond tolerance: {counts}", counts=counts_by_state)


def label_sides(result: Result) -> tuple[tuple[str, Side], tuple[str, Side]]:
    """Return both sides with their names."""
    return ("target", result.target), ("reference", result.reference)


def format_side(side: Side) -> str:
    """Describe a dump in one line: its format, its size, the files that were read, its path."""
    size = translate("{ops} ops, {tensors} tensors", ops=side.ops, tensors=side.tensors)
    if side.files_total:
        read, total = side.files_read, side.files_total
        size += translate(", {read:,} of {total:,} files read", read=read, total=total)
    if side.files_read < side.files_total:
        size += translate(" (--verify reads all)")
    source, path = format_source(side.source), escape_control(side.source.path)
    return f"{source}{translate(': ')}{size}{translate(', ')}{path}"


def format_source(source: Source) -> str:
    """Describe a trace in one phrase: framework, format, step and rank.

    >>> format_source(Source("/d", "ptdbg", "6.0 (max, min)", "pytorch", step=0, rank=0))
    'pytorch, ptdbg, 6.0 (max, min), step 0, rank 0'
    """
    # MindSpore's own dump has the name of the framework, which is not repeated.
    format_names = dict.fromkeys((source.framework, source.format, source.format_variant))
    return escape_control(", ".join([*filter(None, format_names), *format_part(source)]))


def format_part(source: Source) -> list[str]:
    """Return step, rank, process and graph, as far as they are known: ['step 0', 'rank 0']."""
    labels = []
    for name in ("step", "rank", "process", "graph"):
        value = getattr(source, name)
        if value is not None:
            labels.append(f"{name} {value}")
    return labels
