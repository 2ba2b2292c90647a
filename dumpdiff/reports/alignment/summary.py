"""How a result is said to a person: the headline, numbers, shares and names that are safe to print."""

from __future__ import annotations

import math

from ...model.formatting import number, percent, printable
from ...model.result import Result, Side
from ...model.trace import Source

__all__ = ["described", "headline", "held", "number", "percent", "place", "printable", "roles"]


def headline(result: Result) -> str:
    """The verdict in one line: what parted first, how much was compared and agreed, or why nobody can tell.

    Shares are those of the reference, the side that is trusted to be complete; an aligned result has enough of both.

    >>> headline(result)  # doctest: +SKIP
    'aligned: 98.2 % of forward, 94 % of backward compared, noise 2.1e-7'
    """
    if result.verdict == "diverged" and result.first_divergence is not None:
        return f"first divergence: {printable(result.first_divergence.title)}"
    if result.verdict == "inconclusive" and result.notes:
        return f"inconclusive: {printable(result.notes[0])}"
    shares = result.coverage.get("reference", {})
    phases = [
        phase for phase in shares if shares[phase]["ops"] > 0 and phase in ("forward", "backward")
    ]
    compared = (
        ", ".join(f"{percent(shares[phase]['share'])} of {phase}" for phase in phases) or "nothing"
    )
    noise = "" if math.isnan(result.noise_floor) else f", noise {number(result.noise_floor)}"
    return f"{result.verdict}: {compared} compared{noise}"


def roles(result: Result) -> tuple[tuple[str, Side], tuple[str, Side]]:
    """Both sides with what they are called."""
    return ("target", result.target), ("reference", result.reference)


def held(side: Side) -> str:
    """One line on a dump: what it is, how much it holds, where it is."""
    return f"{described(side.source)}: {side.ops} ops, {side.tensors} tensors, {printable(side.source.path)}"


def described(source: Source) -> str:
    """What a trace is, in one phrase.

    >>> described(Source("/d", "ptdbg", "6.0 (max, min, mean, norm)", "pytorch", step=0, rank=0))
    'pytorch, ptdbg, 6.0 (max, min, mean, norm), step 0, rank 0'
    """
    kind = dict.fromkeys(
        (source.framework, source.format, source.era)
    )  # MindSpore's own dump is named like it
    return printable(", ".join([*filter(None, kind), *place(source)]))


def place(source: Source) -> list[str]:
    """Which step, rank and graph, as far as known."""
    where = ("step", "rank", "process", "graph")
    return [f"{key} {value}" for key in where if (value := getattr(source, key)) is not None]
