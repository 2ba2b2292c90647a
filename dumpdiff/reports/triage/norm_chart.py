"""The differences of local norms as bars: one for each parameter, logarithmic, with what is allowed to it as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...gradient_norms import Row
from ...model.formatting import number

WIDTH = 240  #: of a bar that is as long as any


@dataclass(frozen=True)
class NormBar:
    """One parameter."""

    name: str
    state: str  #: agree, differ, inconclusive, coarse
    length: float  #: 0..WIDTH
    limit: float  #: where the line of the tolerance stands
    off_by: str
    words: str


@dataclass(frozen=True)
class NormChart:
    """The first of all parameters; both ends of the scale in words."""

    bars: tuple[NormBar, ...]
    low: str
    high: str


def draw_norm_chart(rows: Sequence[Row]) -> NormChart | None:
    """The bars of these rows, from the power of ten below the least difference or tolerance to that above the largest.

    A difference that is infinite has the longest bar, 0 has none. None if no row can be placed.
    """
    values = [
        value for row in rows for value in (row.relative, row.tolerance) if 0 < value < math.inf
    ]
    if not values:
        return None
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)

    def length(value: float) -> float:
        if not value > 0:
            return 0.0
        return (
            round(WIDTH * min(1.0, max(0.0, (math.log10(value) - low) / (high - low))), 1)
            if value < math.inf
            else WIDTH
        )

    return NormChart(
        tuple(
            NormBar(
                row.label,
                row.state,
                length(row.relative),
                length(row.tolerance),
                number(row.relative),
                row.summary,
            )
            for row in rows
        ),
        number(10.0**low),
        number(10.0**high),
    )
