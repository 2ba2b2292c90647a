"""The curves of two runs over their steps as SVG: losses, norms and learning rates."""

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
from ..language import translate
from ..sentences import translate_sentence

_FILE_WIDTH, _PAGE_WIDTH = 960, 560  #: pixels of a panel in a file of its own, and on a page
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 25, 25  #: margins of a panel
_HEIGHT = 200  #: of a panel without its margins
_N_TICKS = 5
_MAX_DOTS = 40  #: a line of at most so many points also has dots: a single point is no line

_STYLE = """
text { font: 12px sans-serif; fill: #444 } .title { font-weight: bold }
.frame { fill: none; stroke: #999 }
.target, .reference, .distance { fill: none; stroke-width: 1.3 }
.target { stroke: #c33 } .reference { stroke: #27c } .distance { stroke: #555 }
.limit { stroke: #999; stroke-dasharray: 4 3 } .divergence { stroke: #c33; stroke-dasharray: 2 3 }
text.target { fill: #c33; stroke: none } text.reference { fill: #27c; stroke: none }
@media (prefers-color-scheme: dark) {
  svg { background: #181818 } text { fill: #ccc } .distance { stroke: #bbb }
  .target { stroke: #f77 } text.target { fill: #f77 }
  .reference { stroke: #7af } text.reference { fill: #7af }
}
"""

Line = tuple[str, AnyArray, AnyArray]  #: class, steps, values


@dataclass(frozen=True)
class Panel:
    """Named lines over steps, with a level to compare them with."""

    title: str
    lines: Sequence[Line]
    is_logarithmic: bool = False
    level: float | None = None


@dataclass(frozen=True)
class _Axes:
    """Where a panel is drawn and which steps and values it covers.

    Values are logarithms on a logarithmic scale.
    """

    first_step: int
    last_step: int
    lowest: float
    highest: float
    top: int  #: y of the upper edge of the frame
    width: int  #: of the frame

    def compute_x(self, step: AnyArray | float) -> AnyArray:
        n_steps = self.last_step - self.first_step
        return np.round(_LEFT + self.width * (np.asarray(step) - self.first_step) / n_steps, 1)

    def compute_y(self, value: AnyArray | float) -> AnyArray:
        value_range = self.highest - self.lowest
        return np.round(self.top + _HEIGHT * (self.highest - np.asarray(value)) / value_range, 1)


def write(comparison: LogComparison, stream: IO[bytes]) -> None:
    """Write all panels below each other, as one SVG file with its own style."""
    panels = build_panels(comparison)
    panel_height = _TOP + _HEIGHT + _BOTTOM
    height = len(panels) * panel_height + 5
    size = f'viewBox="0 0 {_FILE_WIDTH} {height}" width="{_FILE_WIDTH}" height="{height}"'
    title = escape(comparison.to_stage().headline)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        "<!-- dumpdiff -->",
        f"<title>{title}</title><style>{_STYLE}</style>",
    ]
    for index, panel in enumerate(panels):
        parts += _draw_panel(panel, comparison, index * panel_height + _TOP, _FILE_WIDTH)
    stream.write("\n".join([*parts, "</svg>\n"]).encode("utf-8"))


def draw_figures(comparison: LogComparison) -> tuple[str, ...]:
    """Return each panel as an ``<svg>`` of class ``curves``; the page styles its classes."""
    size = f'viewBox="0 0 {_PAGE_WIDTH} {_TOP + _HEIGHT + _BOTTOM}"'
    figures = []
    for panel in build_panels(comparison):
        title = escape(translate_sentence(panel.title))
        head = f'<svg class="curves" {size} role="img" aria-label="{title}">'
        elements = _draw_panel(panel, comparison, _TOP, _PAGE_WIDTH)
        figures.append("\n".join([head, *elements, "</svg>"]))
    return tuple(figures)


def build_panels(comparison: LogComparison) -> tuple[Panel, ...]:
    """Return the panels that have a value.

    They are losses, |target - reference| with the limit of its mean, norms, and learning rates.
    """
    return tuple(panel for panel in _list_panels(comparison) if panel.lines)


def _list_panels(comparison: LogComparison) -> Iterator[Panel]:
    steps = comparison.steps
    first_step, last_step = steps[0], steps[-1]
    losses = []
    for side, values in (
        ("target", comparison.target_loss),
        ("reference", comparison.reference_loss),
    ):
        is_finite = np.isfinite(values)
        losses.append((side, steps[is_finite], values[is_finite]))
    yield Panel("loss", _clip_lines(losses, first_step, last_step))
    distance = np.abs(comparison.target_loss - comparison.reference_loss)
    is_positive = distance > 0
    if is_positive.any():
        line = ("distance", steps[is_positive], distance[is_positive])
        yield Panel("|target - reference|", [line], is_logarithmic=True, level=MEAN_ABSOLUTE)
    norms = [
        ("target", *_select_norms(comparison.target)),
        ("reference", *_select_norms(comparison.reference)),
    ]
    yield Panel("global norm", _clip_lines(norms, first_step, last_step))
    rate_steps, target, reference = align_rates(comparison.target, comparison.reference)
    rates = [("target", rate_steps, target), ("reference", rate_steps, reference)]
    yield Panel("learning rate", _clip_lines(rates, first_step, last_step))


def _clip_lines(lines: Sequence[Line], first_step: float, last_step: float) -> list[Line]:
    """Return lines between two steps, without those that have no point there."""
    clipped_lines = []
    for name, steps, values in lines:
        is_inside = (steps >= first_step) & (steps <= last_step)
        if is_inside.any():
            clipped_lines.append((name, steps[is_inside], values[is_inside]))
    return clipped_lines


def _select_norms(curves: Curves) -> tuple[AnyArray, AnyArray]:
    is_printed = np.isfinite(curves.norm)
    return curves.steps[is_printed], curves.norm[is_printed]


def _draw_panel(panel: Panel, comparison: LogComparison, top: int, width: int) -> Iterator[str]:
    """Yield the elements of a panel whose frame begins ``top`` pixels down."""
    scale = np.log10 if panel.is_logarithmic else np.asarray
    lines = [(name, steps, scale(values)) for name, steps, values in panel.lines]
    level = None if panel.level is None else float(scale(panel.level))
    axes = _fit_axes(lines, level, comparison, top, width)
    yield from _draw_frame(panel, axes)
    right_edge = _LEFT + axes.width
    if level is not None:
        y = axes.compute_y(level)
        yield f'<line class="limit" x1="{_LEFT}" x2="{right_edge}" y1="{y}" y2="{y}"/>'
    if comparison.divergence_step is not None:
        x = axes.compute_x(comparison.divergence_step)
        yield f'<line class="divergence" x1="{x}" x2="{x}" y1="{top}" y2="{top + _HEIGHT}"/>'
    for index, (name, steps, values) in enumerate(lines):
        yield from _draw_line(name, steps, values, axes)
        if name != "distance":
            label_x = right_edge - 140 + 80 * index
            yield f'<text class="{name}" x="{label_x}" y="{top - 7}">{translate(name)}</text>'


def _fit_axes(
    lines: Sequence[Line], level: float | None, comparison: LogComparison, top: int, width: int
) -> _Axes:
    """Return axes that show all lines and the level."""
    values = np.concatenate([line_values for _, _, line_values in lines])
    lowest, highest = float(np.min(values)), float(np.max(values))
    if level is not None:
        lowest, highest = min(lowest, level), max(highest, level)
    if highest <= lowest:
        lowest, highest = lowest - abs(lowest or 1) / 2, highest + abs(highest or 1) / 2
    first_step = int(comparison.steps[0])
    last_step = max(int(comparison.steps[-1]), first_step + 1)
    return _Axes(first_step, last_step, lowest, highest, top, width - _LEFT - _RIGHT)


def _draw_frame(panel: Panel, axes: _Axes) -> Iterator[str]:
    top, bottom = axes.top, axes.top + _HEIGHT
    size = f'width="{axes.width}" height="{_HEIGHT}"'
    title = escape(translate_sentence(panel.title))
    yield f'<rect class="frame" x="{_LEFT}" y="{top}" {size}/>'
    yield f'<text class="title" x="{_LEFT}" y="{top - 7}">{title}</text>'
    for value in _choose_ticks(axes.lowest, axes.highest, panel.is_logarithmic):
        label = 10**value if panel.is_logarithmic else value
        y = axes.compute_y(value) + 4
        yield f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{label:.3g}</text>'
    tick_steps = np.linspace(axes.first_step, axes.last_step, _N_TICKS).round().astype(int)
    for step in np.unique(tick_steps):
        x = axes.compute_x(step)
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{step}</text>'


def _draw_line(name: str, steps: AnyArray, values: AnyArray, axes: _Axes) -> Iterator[str]:
    thin_steps, thin_values = _reduce_points(steps, values, axes.width)
    xs, ys = axes.compute_x(thin_steps), axes.compute_y(thin_values)
    points = [f"{x:g},{y:g}" for x, y in zip(xs, ys, strict=True)]
    yield f'<polyline class="{name}" points="{" ".join(points)}"/>'
    if len(points) <= _MAX_DOTS:
        for point in points:
            x, y = point.split(",")
            yield f'<circle class="{name}" cx="{x}" cy="{y}" r="2.5"/>'


def _choose_ticks(lowest: float, highest: float, is_logarithmic: bool) -> AnyArray:
    """Return five values from end to end, or the powers of ten on a logarithmic scale."""
    decades = np.arange(np.ceil(lowest), np.floor(highest) + 1)
    if is_logarithmic and len(decades) > 1:
        return decades
    return np.linspace(lowest, highest, _N_TICKS)


def _reduce_points(steps: AnyArray, values: AnyArray, n_columns: int) -> tuple[AnyArray, AnyArray]:
    """Return the lowest and the highest value of each column of pixels.

    Spikes stay visible, and the file of a long run stays small.
    """
    if len(steps) <= 2 * n_columns:
        return steps, values
    rows: list[int] = []
    for column in np.array_split(np.arange(len(steps)), n_columns):
        lowest, highest = np.argmin(values[column]), np.argmax(values[column])
        rows += sorted({int(column[lowest]), int(column[highest])})
    return steps[rows], values[rows]
