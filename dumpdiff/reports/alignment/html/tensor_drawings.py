"""Histograms and difference maps as shapes for SVG; colours are classes of the style sheet, so both themes fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....model.finding_context import DifferenceMap, Histogram
from ....model.formatting import number

_WIDTH, _HEIGHT = 320.0, 120.0  #: of the bars of a histogram


@dataclass(frozen=True)
class Bars:
    """A histogram: an outline for each side; heights grow with the logarithm of the counts, so that tails are seen."""

    target: str  #: path
    reference: str
    low: str  #: what stands at the left end
    high: str
    zero: float | None  #: x of the value 0, None if it lies outside
    most: int


@dataclass(frozen=True)
class Tiles:
    """A difference map: one path for each shade, in units of one block."""

    rows: int
    columns: int
    paths: tuple[tuple[str, str, str], ...]  #: class, path, words
    largest: str
    across: str
    down: str
    scale: str


def bars(histogram: Histogram) -> Bars:
    """The outlines of both sides of a histogram."""
    low, high = histogram.edges[0], histogram.edges[-1]
    most = max(1, *histogram.target, *histogram.reference)
    width = high - low if high > low else 1.0
    x = [(edge - low) / width * _WIDTH for edge in histogram.edges]

    def outline(counts: tuple[int, ...]) -> str:
        heights = [_HEIGHT * (1 - math.log1p(count) / math.log1p(most)) for count in counts]
        steps = "".join(
            f"L{a:.1f} {h:.1f}L{b:.1f} {h:.1f}" for a, b, h in zip(x, x[1:], heights, strict=False)
        )
        return f"M0 {_HEIGHT:g}{steps}L{_WIDTH:g} {_HEIGHT:g}Z"

    zero = -low / width * _WIDTH if low <= 0 <= high else None
    return Bars(
        outline(histogram.target),
        outline(histogram.reference),
        f"{low:.3g}",
        f"{high:.3g}",
        zero,
        most,
    )


_SHADES = (
    "d0",
    "d1",
    "d2",
    "d3",
    "d4",
    "d5",
)  #: half a decade below the largest each, the last all below
_NOTHING, _UNKNOWN = "same", "nonfinite"


def tiles(map_: DifferenceMap) -> Tiles:
    """The blocks of a difference map, those of one class joined in one path."""
    finite = [value for row in map_.values for value in row if math.isfinite(value)]
    largest = max(finite, default=0.0)
    paths: dict[str, list[str]] = {}
    for y, row in enumerate(map_.values):
        for x, value in enumerate(row):
            paths.setdefault(_class(value, largest), []).append(f"M{x} {y}h1v1h-1z")
    words = {_NOTHING: "no difference", _UNKNOWN: "not finite on one side"}
    bounds = [number(largest * 10 ** (-i / 2)) for i in range(len(_SHADES))]
    words |= {name: f"{bounds[i + 1]} to {bounds[i]}" for i, name in enumerate(_SHADES[:-1])}
    words[_SHADES[-1]] = f"up to {bounds[-1]}"
    return Tiles(
        rows=len(map_.values),
        columns=max(map(len, map_.values), default=0),
        paths=tuple((name, "".join(parts), words[name]) for name, parts in sorted(paths.items())),
        largest=number(largest),
        across=map_.columns,
        down=map_.rows,
        scale=number(map_.scale),
    )


def _class(value: float, largest: float) -> str:
    if not math.isfinite(value):
        return _UNKNOWN
    if value <= 0:
        return _NOTHING
    return _SHADES[min(int(-2 * math.log10(value / largest)), len(_SHADES) - 1)]
