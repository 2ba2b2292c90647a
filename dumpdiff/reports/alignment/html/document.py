"""The report on a comparison: what its page says, in which order, and the tables and drawings that go with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from ....model.formatting import number, percent
from ....model.result import Result, Side
from ...page.renderer import Page
from ..summary import headline, place, roles
from . import tables
from .findings import shown
from .heat_map import grids

STATES: Mapping[str, str] = {
    "introduced": "inputs agree, the output does not",
    "amplified": "the error grows more than the operator explains",
    "propagated": "an earlier difference, passed on",
    "agreeing": "within the tolerance",
    "incomparable": "nothing of it could be compared",
}

_SCRIPTS = (
    "uPlot.js", "unpack.js", "elements.js", "hash.js", "frame.js", "table.js", "dots.js", "network.js", "pair.js",
    "divergence.js",
)  # fmt: skip
_SHOWN = 200  #: findings and problems that the page holds; the JSON has all of them


def page(result: Result, markdown: str) -> Page:
    """The page of a result; ``markdown`` is what its button copies."""
    findings = tuple(shown(result, _SHOWN))
    problems = [(role, str(problem)) for role, side in roles(result) for problem in side.problems]
    target, reference = result.target.source, result.reference.source
    context = {
        "result": result,
        "headline": headline(result).partition(": ")[2],
        "notes": result.notes[1:]
        if result.verdict == "inconclusive"
        else result.notes,  # the headline is the first
        "first": findings[0] if findings else None,
        "shown": findings,
        "facts": tuple(_facts(result)),
        "states": STATES,
        "counts": result.pairs["state"].value_counts().to_dict(),
        "grids": grids(result.pairs),
        "problems": problems[:_SHOWN],
        "problem_count": len(problems),
        "about": tuple(_about(result)),
    }
    return Page(
        title=f"{result.verdict}: {target.framework} and {reference.framework} runs compared",
        template="divergence.html",
        context=context,
        tables={"pairs": tables.pairs(result), "unmatched": tables.unmatched(result)},
        data={
            "markdown": markdown,
            "findings": [{"rank": one.finding.rank, "row": one.row} for one in findings],
        },
        styles=("uPlot.css", "page.css", "comparison.css", "divergence.css"),
        scripts=_SCRIPTS,
    )


def _facts(result: Result) -> Iterator[tuple[str, str, str]]:
    """What was compared: a fact, of the target, of the reference; facts that neither side knows are left out."""
    for name, said in _SAID.items():
        values = said(result.target), said(result.reference)
        if any(values):
            yield (name, *values)


_SAID: Mapping[str, Callable[[Side], str]] = {
    "path": lambda side: side.source.path,
    "framework": lambda side: side.source.framework,
    "format": lambda side: f"{side.source.format}, {side.source.era}",
    "part": lambda side: ", ".join(place(side.source)),
    "recorded": lambda side: _details(side),
    "size": lambda side: f"{side.ops:,} ops, {side.tensors:,} tensors",
}

_TOLD = ("version", "device", "task", "level")  #: details that say how a dump was made


def _details(side: Side) -> str:
    return ", ".join(
        f"{name} {side.source.details[name]}" for name in _TOLD if side.source.details.get(name)
    )


def _about(result: Result) -> Iterator[tuple[str, str]]:
    """How it was judged, in figures."""
    tolerance = result.pairs["tolerance"].dropna()
    if len(tolerance):
        ends = dict.fromkeys((number(tolerance.min()), number(tolerance.max())))
        yield "tolerances", f"{' to '.join(ends)}, by operator, dtype and length of sums"
    if not math.isnan(result.noise_floor):
        yield "noise", f"{number(result.noise_floor)}, the median error of the pairs that agree"
    if "min_coverage" in result.details:
        yield "coverage wanted", percent(float(result.details["min_coverage"]))
    if result.baseline is not None:
        yield (
            "second run of the reference",
            result.baseline.unusable
            or f"spread of {result.baseline.values:,} values, median {number(result.baseline.median)}, "
            f"largest {number(result.baseline.largest)} ({result.baseline.largest_op}), {result.baseline.source.path}",
        )
