"""The differences of local norms as a bar chart on a logarithmic scale, with their tolerances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...gradient_norms import Row
from ...model.formatting import format_number

WIDTH = 240  #: length of the longest bar


@dataclass(frozen=True)
class NormBar:
    """The bar of one parameter."""

    name: str
    state: str  #: agree, differ, inconclusive, coarse
    length: float  #: 0..WIDTH
    limit: float  #: position of the tolerance, 0..WIDTH
    difference: str
    tooltip: str


@dataclass(frozen=True)
class NormChart:
    """The bars of some parameters, and labels of both ends of the scale."""

    bars: tuple[NormBar, ...]
    low: str
    high: str


def draw_norm_chart(rows: Sequence[Row]) -> NormChart | None:
    """Return the bars of some rows, None if no row has a position on the scale.

    The scale begins at the power of ten below the smallest difference or tolerance, and ends at the
    power of ten above the largest. An infinite difference has the longest bar, 0 has no bar.
    """
    values = [value for row in rows for value in (row.relative, row.tolerance)]
    visible_values = [value for value in values if 0 < value < math.inf]
    if not visible_values:
        return None
    low = math.floor(math.log10(min(visible_values)))
    high = max(math.ceil(math.log10(max(visible_values))), low + 1)
    bars = []
    for row in rows:
        bar = NormBar(
            name=row.label,
            state=row.state,
            length=_compute_length(row.relative, low, high),
            limit=_compute_length(row.tolerance, low, high),
            difference=format_number(row.relative),
            tooltip=row.summary,
        )
        bars.append(bar)
    return NormChart(tuple(bars), format_number(10.0**low), format_number(10.0**high))


def _compute_length(value: float, low: int, high: int) -> float:
    """Return the length of a bar on a scale from 10**low to 10**high."""
    if not value > 0:
        return 0.0
    if value == math.inf:
        return WIDTH
    share = (math.log10(value) - low) / (high - low)
    return round(WIDTH * min(1.0, max(0.0, share)), 1)
