"""Findings as the page shows them: with their row in the table of pairs, and their drawings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ....model.finding import Finding
from ....model.finding_context import FindingContext, SourceExcerpt
from ....model.formatting import format_number
from ....model.result import Result
from ...language import translate
from .dataflow_diagram import Diagram, draw_dataflow
from .tables import find_row, find_rows_of_ops
from .tensor_charts import DifferenceChart, HistogramChart, draw_difference_map, draw_histogram

_MAX_OPEN = 3  #: findings that are unfolded at first: later ones mostly follow from them

#: Formats of the metrics that are not errors.
_METRIC_FORMATS = {
    "cosine": ".8g",
    "estimated_cosine": ".6g",
    "norm_ratio": ".6g",
    "beyond": ".1%",
    "amplification": ".3g",
    "float64_ratio": ",.0f",
    "nonfinite_mismatch": ",.0f",
    "target_size": ",.0f",
    "reference_size": ",.0f",
}


@dataclass(frozen=True)
class FindingDrawings:
    """The drawings of a finding's context."""

    dataflow: Diagram
    histogram: HistogramChart | None
    difference: DifferenceChart | None
    stacks: tuple[tuple[str, str, tuple[str, ...]], ...]  #: side, op, frames
    sources: tuple[SourceExcerpt, ...]


@dataclass(frozen=True)
class FindingView:
    """A finding, and what the page adds to it."""

    finding: Finding
    row: int  #: in the table of pairs, -1 if none
    ratio: float  #: error over tolerance
    is_open: bool
    metrics: tuple[tuple[str, str], ...]  #: name, value
    drawings: FindingDrawings | None

    @property
    def names(self) -> tuple[str, ...]:
        """The ops that its sentences name."""
        return (*self.finding.target_ops, *self.finding.reference_ops)

    @property
    def place(self) -> str:
        """Its scope, or the op that it ends at if it has none."""
        ends = (self.finding.scope, *self.finding.target_ops[-1:], *self.finding.reference_ops[-1:])
        return next(filter(None, ends), "")


def view_findings(result: Result, limit: int) -> Iterator[FindingView]:
    """Yield the first findings of a result, at most ``limit``."""
    contexts = {context.rank: context for context in result.finding_contexts}
    rows = find_rows_of_ops(result.pairs)
    for finding in result.findings[:limit]:
        context = contexts.get(finding.rank)
        error = finding.metrics.get("error", math.nan)
        yield FindingView(
            finding=finding,
            row=find_row(finding, result.pairs),
            ratio=error / finding.tolerance if finding.tolerance else math.nan,
            is_open=finding.rank <= _MAX_OPEN,
            metrics=tuple(_format_metrics(finding)),
            drawings=None if context is None else _draw_context(context, finding, rows),
        )


def _draw_context(
    context: FindingContext, finding: Finding, rows: Mapping[str, Mapping[str, int]]
) -> FindingDrawings:
    histogram, difference = context.histogram, context.difference
    return FindingDrawings(
        dataflow=draw_dataflow(context, rows),
        histogram=None if histogram is None else draw_histogram(histogram),
        difference=None if difference is None else draw_difference_map(difference),
        stacks=tuple(_list_stacks(context, finding)),
        sources=context.sources,
    )


def _list_stacks(
    context: FindingContext, finding: Finding
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (side, op, frames) of the finding's ops whose call stack is known."""
    sides = (
        ("target", context.target, finding.target_ops),
        ("reference", context.reference, finding.reference_ops),
    )
    for side, neighborhood, ops in sides:
        for node in neighborhood.nodes:
            if node.op in ops and node.stack:
                yield side, node.op, tuple(node.stack.splitlines())


def _format_metrics(finding: Finding) -> Iterator[tuple[str, str]]:
    for name, value in {**finding.metrics, "tolerance": finding.tolerance}.items():
        if math.isnan(value):
            continue
        form = _METRIC_FORMATS.get(name)
        yield (
            translate(name.replace("_", " ")),
            format_number(value) if form is None else format(value, form),
        )
