"""Histograms and difference maps as SVG paths, whose classes the style sheet colors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....model.finding_context import DifferenceMap, Histogram
from ....model.formatting import format_number
from ...language import translate

_WIDTH, _HEIGHT = 320.0, 120.0  #: of a histogram, without its axis

#: Classes of a difference map: each shade is half a decade below the one before, from the largest
#: difference on; the last one holds everything below.
_SHADES = ("d0", "d1", "d2", "d3", "d4", "d5")
_EQUAL, _NONFINITE = "same", "nonfinite"


@dataclass(frozen=True)
class HistogramChart:
    """A histogram: an outline for each side.

    Heights grow with the logarithm of the counts, so that tails are visible.
    """

    target: str  #: path
    reference: str  #: path
    low: str  #: label of the left end
    high: str  #: label of the right end
    zero: float | None  #: x of the value 0, None if it is outside
    largest_count: int


@dataclass(frozen=True)
class DifferenceChart:
    """A difference map: one path for each shade, in units of one block."""

    n_rows: int
    n_columns: int
    paths: tuple[tuple[str, str, str], ...]  #: class, path, label
    largest: str
    column_axes: str
    row_axes: str
    scale: str


def draw_histogram(histogram: Histogram) -> HistogramChart:
    """Return the outlines of both sides of a histogram."""
    low, high = histogram.edges[0], histogram.edges[-1]
    largest_count = max(1, *histogram.target, *histogram.reference)
    value_range = high - low if high > low else 1.0
    x_positions = [(edge - low) / value_range * _WIDTH for edge in histogram.edges]
    return HistogramChart(
        target=_draw_outline(histogram.target, x_positions, largest_count),
        reference=_draw_outline(histogram.reference, x_positions, largest_count),
        low=f"{low:.3g}",
        high=f"{high:.3g}",
        zero=-low / value_range * _WIDTH if low <= 0 <= high else None,
        largest_count=largest_count,
    )


def _draw_outline(counts: Sequence[int], x_positions: Sequence[float], largest_count: int) -> str:
    steps = []
    for count, x_low, x_high in zip(counts, x_positions[:-1], x_positions[1:], strict=True):
        y = _HEIGHT * (1 - math.log1p(count) / math.log1p(largest_count))
        steps.append(f"L{x_low:.1f} {y:.1f}L{x_high:.1f} {y:.1f}")
    return f"M0 {_HEIGHT:g}{''.join(steps)}L{_WIDTH:g} {_HEIGHT:g}Z"


def draw_difference_map(difference: DifferenceMap) -> DifferenceChart:
    """Return the blocks of a difference map; the blocks of one class are one path."""
    finite_values = [value for row in difference.values for value in row if math.isfinite(value)]
    largest = max(finite_values, default=0.0)
    squares: dict[str, list[str]] = {}
    for y, row in enumerate(difference.values):
        for x, value in enumerate(row):
            squares.setdefault(classify_difference(value, largest), []).append(f"M{x} {y}h1v1h-1z")
    labels = _label_classes(largest)
    paths = [(name, "".join(squares[name]), labels[name]) for name in sorted(squares)]
    return DifferenceChart(
        n_rows=len(difference.values),
        n_columns=max(map(len, difference.values), default=0),
        paths=tuple(paths),
        largest=format_number(largest),
        column_axes=difference.columns,
        row_axes=difference.rows,
        scale=format_number(difference.scale),
    )


def _label_classes(largest: float) -> dict[str, str]:
    labels = {_EQUAL: translate("no difference"), _NONFINITE: translate("not finite on one side")}
    upper_bounds = [format_number(largest * 10 ** (-i / 2)) for i in range(len(_SHADES))]
    for shade, lower, upper in zip(_SHADES, upper_bounds[1:], upper_bounds, strict=False):
        labels[shade] = translate("{lower} to {upper}", lower=lower, upper=upper)
    labels[_SHADES[-1]] = translate("up to {upper}", upper=upper_bounds[-1])
    return labels


def classify_difference(value: float, largest: float) -> str:
    """Return the CSS class of a difference; ``largest`` is the largest finite one."""
    if not math.isfinite(value):
        return _NONFINITE
    if value <= 0:
        return _EQUAL
    half_decades = int(-2 * math.log10(value / largest))
    return _SHADES[min(half_decades, len(_SHADES) - 1)]
