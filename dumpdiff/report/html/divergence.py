"""The report on a comparison: what its page says, in which order, and the tables and drawings that go with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...result import Finding, Result, Side
from ...wording import number
from ..words import headline, percent, place, roles
from . import tables
from .drawings import Bars, Tiles, bars, tiles
from .graph import Drawing, draw
from .heat import grids
from .page import Page

STATES: Mapping[str, str] = {
    "introduced": "inputs agree, the output does not",
    "amplified": "the error grows more than the operator explains",
    "propagated": "an earlier difference, passed on",
    "agreeing": "within the tolerance",
    "incomparable": "nothing of it could be compared",
}

_SHOWN = 200  #: findings and problems that the page holds; the JSON has all of them
_OPEN = 3  #: findings that are unfolded from the start


@dataclass(frozen=True)
class Shown:
    """A finding and its drawings."""

    finding: Finding
    row: int  #: of the table of pairs, -1 if none
    ratio: float  #: error over tolerance
    open: bool
    graph: Drawing | None
    histogram: Bars | None
    difference: Tiles | None
    metrics: tuple[tuple[str, str], ...]  #: name, value
    stacks: tuple[tuple[str, str, tuple[str, ...]], ...]  #: side, op, frames

    @property
    def names(self) -> tuple[str, ...]:
        """The ops that its sentences speak of."""
        return (*self.finding.target_ops, *self.finding.reference_ops)


def page(result: Result, markdown: str) -> Page:
    """The page of a result; ``markdown`` is what its button copies."""
    shown = tuple(_shown(result))
    target, reference = result.target.source, result.reference.source
    context = {
        "result": result,
        "headline": headline(result).partition(": ")[2],
        "notes": result.notes[1:] if result.verdict == "inconclusive" else result.notes,  # the headline is the first
        "first": shown[0] if shown else None,
        "shown": shown,
        "facts": tuple(_facts(result)),
        "states": STATES,
        "counts": result.pairs["state"].value_counts().to_dict(),
        "grids": grids(result.pairs),
        "problems": _problems(result)[:_SHOWN],
        "problem_count": len(_problems(result)),
        "about": tuple(_about(result)),
    }
    return Page(
        title=f"{result.verdict}: {target.framework} and {reference.framework} runs compared",
        template="divergence.html",
        context=context,
        tables={"pairs": tables.pairs(result), "unmatched": tables.unmatched(result)},
        data={
            "markdown": markdown,
            "findings": [{"rank": s.finding.rank, "row": s.row, "title": s.finding.title} for s in shown],
        },
        styles=("uPlot.css", "page.css", "divergence.css"),
        scripts=(
            "uPlot.js",
            "unpack.js",
            "elements.js",
            "hash.js",
            "table.js",
            "dots.js",
            "network.js",
            "pair.js",
            "divergence.js",
        ),
    )


def _shown(result: Result) -> Iterator[Shown]:
    closeups = {closeup.rank: closeup for closeup in result.closeups}
    rows = tables.rows_of_ops(result.pairs)
    for finding in result.findings[:_SHOWN]:
        closeup = closeups.get(finding.rank)
        error = finding.metrics.get("error", float("nan"))
        stacks = []
        if closeup is not None:
            sides = (
                ("target", closeup.target, finding.target_ops),
                ("reference", closeup.reference, finding.reference_ops),
            )
            stacks = [
                (name, node.op, tuple(node.stack.splitlines()))
                for name, side, ops in sides
                for node in side.nodes
                if node.op in ops and node.stack
            ]
        yield Shown(
            finding=finding,
            row=tables.row_of(finding, result.pairs),
            ratio=error / finding.tolerance if finding.tolerance else float("nan"),
            open=finding.rank <= _OPEN,
            graph=None if closeup is None else draw(closeup, rows),
            histogram=bars(closeup.histogram) if closeup is not None and closeup.histogram is not None else None,
            difference=tiles(closeup.difference) if closeup is not None and closeup.difference is not None else None,
            metrics=tuple(_metrics(finding)),
            stacks=tuple(stacks),
        )


#: Numbers that are no errors, and how they are printed.
_FORMS = {
    "cosine": ".8g", "norm_ratio": ".6g", "beyond": ".1%", "amplification": ".3g", "float64_ratio": ",.0f",
    "nonfinite_mismatch": ",.0f",
}  # fmt: skip


def _metrics(finding: Finding) -> Iterator[tuple[str, str]]:
    for name, value in {**finding.metrics, "tolerance": finding.tolerance}.items():
        if not math.isnan(value):
            yield name.replace("_", " "), format(value, _FORMS[name]) if name in _FORMS else number(value)


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
    return ", ".join(f"{name} {side.source.details[name]}" for name in _TOLD if side.source.details.get(name))


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


def _problems(result: Result) -> list[tuple[str, str]]:
    return [(role, str(problem)) for role, side in roles(result) for problem in side.problems]
