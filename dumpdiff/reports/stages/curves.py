"""Both runs' curves over steps as SVG: losses, their distance, gradient norms, learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import IO

import numpy as np

from ...model.arrays import AnyArray
from ...training_logs import Curves, LogComparison
from ...training_logs.comparison import align_rates
from ...training_logs.migration_standard import MEAN_ABSOLUTE

_WIDTH, _NARROW = 960, 560  #: pixels of a drawing of its own, and of one beside others
_LEFT, _RIGHT, _ABOVE, _BELOW = 70, 20, 25, 25
_HEIGHT = 200
_TICKS = 5
_DOTS = 40  #: so many points are also drawn as dots: one point alone is no line

_STYLE = """
text { font: 12px sans-serif; fill: #444 } .title { font-weight: bold } .frame { fill: none; stroke: #999 }
.target, .reference, .distance { fill: none; stroke-width: 1.3 } .target { stroke: #c33 } .reference { stroke: #27c }
.distance { stroke: #555 }
.limit { stroke: #999; stroke-dasharray: 4 3 } .departure { stroke: #c33; stroke-dasharray: 2 3 }
text.target { fill: #c33; stroke: none } text.reference { fill: #27c; stroke: none }
@media (prefers-color-scheme: dark) { svg { background: #181818 } text { fill: #ccc } .distance { stroke: #bbb }
  .target { stroke: #f77 } text.target { fill: #f77 } .reference { stroke: #7af } text.reference { fill: #7af } }
"""


Line = tuple[str, AnyArray, AnyArray]  #: class, steps, values


@dataclass(frozen=True)
class Panel:
    """One drawing: named lines over steps, a level to compare them with, on a linear or logarithmic scale."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False
    level: float | None = None


def write_svg(comparison: LogComparison, stream: IO[bytes]) -> None:
    """Write all drawings below each other, as one file with its own style. A departure is marked."""
    drawn = build_panels(comparison)
    one = _ABOVE + _HEIGHT + _BELOW
    height = len(drawn) * one + 5
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<title>{escape(comparison.to_stage().headline)}</title><style>{_STYLE}</style>",
    ]
    for i, panel in enumerate(drawn):
        parts += _drawn(panel, comparison, i * one + _ABOVE, _WIDTH)
    stream.write("\n".join([*parts, "</svg>\n"]).encode("utf-8"))


def draw_figures(comparison: LogComparison) -> tuple[str, ...]:
    """Each drawing as an ``<svg>`` of class ``curves`` for a page, which styles the classes of its parts."""
    head = f'<svg class="curves" viewBox="0 0 {_NARROW} {_ABOVE + _HEIGHT + _BELOW}" role="img"'
    return tuple(
        "\n".join(
            [
                f'{head} aria-label="{escape(panel.title)}">',
                *_drawn(panel, comparison, _ABOVE, _NARROW),
                "</svg>",
            ]
        )
        for panel in build_panels(comparison)
    )


def build_panels(comparison: LogComparison) -> tuple[Panel, ...]:
    """Losses; |target - reference| with the limit of the mean; norms; learning rates; those that have a value."""
    return tuple(panel for panel in _panels(comparison) if panel.lines)


def _panels(comparison: LogComparison) -> Iterator[Panel]:
    steps = comparison.steps

    def both(mine: AnyArray, target: AnyArray, theirs: AnyArray, reference: AnyArray) -> list[Line]:
        """The lines of both sides from the first to the last common step, without those that have no point there."""
        sides = (("target", mine, target), ("reference", theirs, reference))
        inside = [
            (name, at, values, (at >= steps[0]) & (at <= steps[-1])) for name, at, values in sides
        ]
        return [(name, at[kept], values[kept]) for name, at, values, kept in inside if kept.any()]

    yield Panel("loss", both(steps, comparison.target_loss, steps, comparison.reference_loss))
    distance = np.abs(comparison.target_loss - comparison.reference_loss)
    seen = distance > 0
    if seen.any():
        line = ("distance", steps[seen], distance[seen])
        yield Panel("|target - reference|", [line], logarithmic=True, level=MEAN_ABSOLUTE)
    yield Panel("global norm", both(*_norms(comparison.target), *_norms(comparison.reference)))
    at, target, reference = align_rates(comparison.target, comparison.reference)
    yield Panel("learning rate", both(at, target, at, reference))


def _norms(curves: Curves) -> tuple[AnyArray, AnyArray]:
    printed = np.isfinite(curves.norm)
    return curves.steps[printed], curves.norm[printed]


def _drawn(panel: Panel, comparison: LogComparison, top: int, width: int) -> Iterator[str]:
    """The elements of one drawing, its frame ``top`` pixels down."""
    first, departure = int(comparison.steps[0]), comparison.divergence_step
    last = max(int(comparison.steps[-1]), first + 1)
    scale = np.log10 if panel.logarithmic else np.asarray
    drawn = [(name, steps, scale(values)) for name, steps, values in panel.lines]
    lowest, highest = (
        float(end(np.concatenate([values for _, _, values in drawn]))) for end in (np.min, np.max)
    )
    if panel.level is not None:
        level = float(scale(panel.level))
        lowest, highest = min(lowest, level), max(highest, level)
    if highest <= lowest:
        lowest, highest = lowest - abs(lowest or 1) / 2, highest + abs(highest or 1) / 2
    inner = width - _LEFT - _RIGHT

    def x(step: AnyArray | float) -> AnyArray:
        return np.round(_LEFT + inner * (np.asarray(step) - first) / (last - first), 1)

    def y(value: AnyArray | float) -> AnyArray:
        return np.round(top + _HEIGHT * (highest - np.asarray(value)) / (highest - lowest), 1)

    yield f'<rect class="frame" x="{_LEFT}" y="{top}" width="{inner}" height="{_HEIGHT}"/>'
    yield f'<text class="title" x="{_LEFT}" y="{top - 7}">{escape(panel.title)}</text>'
    for value in _ticks(lowest, highest, panel.logarithmic):
        said = 10**value if panel.logarithmic else value
        yield f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{said:.3g}</text>'
    for step in np.unique(np.linspace(first, last, _TICKS).round().astype(int)):
        yield f'<text x="{x(step)}" y="{top + _HEIGHT + 16}" text-anchor="middle">{step}</text>'
    if panel.level is not None:
        yield f'<line class="limit" x1="{_LEFT}" x2="{_LEFT + inner}" y1="{y(level)}" y2="{y(level)}"/>'
    if departure is not None:
        yield f'<line class="departure" x1="{x(departure)}" x2="{x(departure)}" y1="{top}" y2="{top + _HEIGHT}"/>'
    for i, (name, steps, values) in enumerate(drawn):
        at, kept = _thinned(steps, values, inner)
        points = [f"{a:g},{b:g}" for a, b in zip(x(at), y(kept), strict=True)]
        yield f'<polyline class="{name}" points="{" ".join(points)}"/>'
        for point in points if len(points) <= _DOTS else ():
            across, down = point.split(",")
            yield f'<circle class="{name}" cx="{across}" cy="{down}" r="2.5"/>'
        if name != "distance":
            yield f'<text class="{name}" x="{_LEFT + inner - 140 + 80 * i}" y="{top - 7}">{name}</text>'


def _ticks(lowest: float, highest: float, logarithmic: bool) -> AnyArray:
    """Five values from end to end; of a logarithmic scale the powers of ten, if there are two."""
    decades = np.arange(np.ceil(lowest), np.floor(highest) + 1)
    return decades if logarithmic and len(decades) > 1 else np.linspace(lowest, highest, _TICKS)


def _thinned(steps: AnyArray, values: AnyArray, columns: int) -> tuple[AnyArray, AnyArray]:
    """The lowest and the highest value of each column of pixels: spikes stay, and a long run is no large file."""
    if len(steps) <= 2 * columns:
        return steps, values
    keep: list[int] = []
    for part in np.array_split(np.arange(len(steps)), columns):
        keep += sorted({int(part[np.argmin(values[part])]), int(part[np.argmax(values[part])])})
    return steps[keep], values[keep]
