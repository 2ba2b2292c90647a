"""Findings as the page shows them: each with its row in the table of pairs, its numbers in words, and its drawings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ....model.finding_context import Closeup
from ....model.formatting import number
from ....model.result import Finding, Result
from .dataflow_drawing import Drawing, draw
from .tables import row_of, rows_of_ops
from .tensor_drawings import Bars, Tiles, bars, tiles

_OPEN = 3  #: findings that are unfolded from the start: later ones mostly follow from them


@dataclass(frozen=True)
class Drawn:
    """What lies around a finding."""

    graph: Drawing
    histogram: Bars | None
    difference: Tiles | None
    stacks: tuple[tuple[str, str, tuple[str, ...]], ...]  #: side, op, frames


@dataclass(frozen=True)
class Shown:
    """A finding, and what the page adds to it."""

    finding: Finding
    row: int  #: of the table of pairs, -1 if none
    ratio: float  #: error over tolerance
    open: bool
    metrics: tuple[tuple[str, str], ...]  #: name, value
    drawn: Drawn | None

    @property
    def names(self) -> tuple[str, ...]:
        """The ops that its sentences speak of."""
        return (*self.finding.target_ops, *self.finding.reference_ops)

    @property
    def place(self) -> str:
        """Its scope, or else the op that it ends at."""
        ends = (self.finding.scope, *self.finding.target_ops[-1:], *self.finding.reference_ops[-1:])
        return next(filter(None, ends), "")


def shown(result: Result, most: int) -> Iterator[Shown]:
    """The first findings of a result, at most so many."""
    closeups = {closeup.rank: closeup for closeup in result.closeups}
    rows = rows_of_ops(result.pairs)
    for finding in result.findings[:most]:
        closeup = closeups.get(finding.rank)
        yield Shown(
            finding=finding,
            row=row_of(finding, result.pairs),
            ratio=finding.metrics.get("error", math.nan) / finding.tolerance
            if finding.tolerance
            else math.nan,
            open=finding.rank <= _OPEN,
            metrics=tuple(_metrics(finding)),
            drawn=None if closeup is None else _drawn(closeup, finding, rows),
        )


def _drawn(closeup: Closeup, finding: Finding, rows: Mapping[str, Mapping[str, int]]) -> Drawn:
    sides = (
        ("target", closeup.target, finding.target_ops),
        ("reference", closeup.reference, finding.reference_ops),
    )
    return Drawn(
        graph=draw(closeup, rows),
        histogram=None if closeup.histogram is None else bars(closeup.histogram),
        difference=None if closeup.difference is None else tiles(closeup.difference),
        stacks=tuple(
            (side, node.op, tuple(node.stack.splitlines()))
            for side, around, ops in sides
            for node in around.nodes
            if node.op in ops and node.stack
        ),
    )


#: Numbers that are no errors, and how they are printed.
_FORMS = {
    "cosine": ".8g", "norm_ratio": ".6g", "beyond": ".1%", "amplification": ".3g", "float64_ratio": ",.0f",
    "nonfinite_mismatch": ",.0f", "target_size": ",.0f", "reference_size": ",.0f",
}  # fmt: skip


def _metrics(finding: Finding) -> Iterator[tuple[str, str]]:
    for name, value in {**finding.metrics, "tolerance": finding.tolerance}.items():
        if not math.isnan(value):
            yield (
                name.replace("_", " "),
                format(value, _FORMS[name]) if name in _FORMS else number(value),
            )
