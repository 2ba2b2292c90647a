"""One-line summaries of a result, a dump and its source."""

from __future__ import annotations

import math

from ...model.formatting import escape_control, format_number, format_percent
from ...model.result import Result, Side
from ...model.trace import Source


def format_headline(result: Result) -> str:
    """Return the verdict in one line.

    It names the first divergence, or says how much was compared, or why the result is inconclusive.
    Shares are those of the reference, which is trusted to be complete.

    >>> format_headline(result)  # doctest: +SKIP
    'aligned: 98.2 % of forward, 94 % of backward compared, noise 2.1e-7'
    """
    if result.verdict == "inconclusive" and result.notes:
        return f"inconclusive: {escape_control(result.notes[0])}"
    label, answer = _format_answer(result)
    if not result.weaknesses:
        return f"{label}: {answer}"
    # what makes an answer doubtful comes before it: the end of a long line is not read
    doubts = escape_control("; ".join(result.weaknesses))
    words = f"{label} {answer}" if result.verdict == "diverged" else answer
    return f"{result.verdict}, but in doubt: {doubts}; {words}"


def _format_answer(result: Result) -> tuple[str, str]:
    """Return the answer without its doubts, as a label and the words after the colon."""
    if result.verdict == "diverged" and result.first_divergence is not None:
        return "first divergence", escape_control(result.first_divergence.title)
    noise = ""
    if not math.isnan(result.noise_floor):
        noise = f", noise {format_number(result.noise_floor)}"
    return result.verdict, f"{_format_compared_shares(result)} compared{noise}"


def _format_compared_shares(result: Result) -> str:
    shares = []
    reference_coverage = result.coverage.get("reference", {})
    for phase, figures in reference_coverage.items():
        if phase in ("forward", "backward") and figures["ops"] > 0:
            percent = format_percent(figures["share"])
            shares.append(f"{percent} of {phase}")
    return ", ".join(shares) or "nothing"


def label_sides(result: Result) -> tuple[tuple[str, Side], tuple[str, Side]]:
    """Return both sides with their names."""
    return ("target", result.target), ("reference", result.reference)


def format_side(side: Side) -> str:
    """Describe a dump in one line: its format, its size, the files that were read, its path."""
    size = f"{side.ops} ops, {side.tensors} tensors"
    if side.files_total:
        size += f", {side.files_read:,} of {side.files_total:,} files read"
    if side.files_read < side.files_total:
        size += " (--verify reads all)"
    return f"{format_source(side.source)}: {size}, {escape_control(side.source.path)}"


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
