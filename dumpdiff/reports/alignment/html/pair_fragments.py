"""What a served page shows of one pair in addition: its figures and its values, as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....figures.value_windows import (
    ValueWindow,
    compute_differences,
    find_window_start,
)
from ....model.finding_context import DifferenceMap, Histogram
from ....model.formatting import format_number
from ...page.renderer import render_fragment
from .tensor_charts import classify_difference, draw_difference_map, draw_histogram


@dataclass(frozen=True)
class AxisView:
    """One axis of the tensors, with the first index that is shown."""

    number: int
    length: int
    start: int


@dataclass(frozen=True)
class CellView:
    """One element of both tensors."""

    target: str
    reference: str
    difference: str
    css_class: str
    is_largest: bool


def write_figures(histogram: Histogram | None, difference: DifferenceMap | None) -> bytes:
    """Return the histogram and the difference map of a pair."""
    context = {
        "histogram": None if histogram is None else draw_histogram(histogram),
        "difference": None if difference is None else draw_difference_map(difference),
    }
    return render_fragment("alignment/pair_figures.html", context)


def write_values(
    window: ValueWindow, largest_index: tuple[int, ...], largest_difference: float
) -> bytes:
    """Return a window of the values, with inputs that choose another one."""
    axes = [
        AxisView(number, length, start)
        for number, (length, start) in enumerate(zip(window.shape, window.start, strict=True))
    ]
    column_start = window.start[window.column_axis] if window.column_axis >= 0 else 0
    context = {
        "window": window,
        "axes": axes,
        "columns": [column_start + place for place in range(len(window.target[0]))],
        "rows": list(_view_rows(window, largest_index, largest_difference)),
        "differs": largest_difference > 0,
        "largest": format_number(largest_difference),
        "largest_index": ", ".join(map(str, largest_index)),
        "largest_start": ",".join(map(str, find_window_start(window, largest_index))),
    }
    return render_fragment("alignment/pair_values.html", context)


def _view_rows(
    window: ValueWindow, largest_index: tuple[int, ...], largest_difference: float
) -> Iterator[tuple[int, list[CellView]]]:
    """Yield (index along the axis of the rows, cells) of every row."""
    differences = compute_differences(np.asarray(window.target), np.asarray(window.reference))
    shade_scale = largest_difference
    if not math.isfinite(shade_scale):  # the shades are of finite differences
        shade_scale = float(np.max(differences, where=np.isfinite(differences), initial=0.0))
    for row, (targets, references) in enumerate(zip(window.target, window.reference, strict=True)):
        cells = []
        for column, (target, reference) in enumerate(zip(targets, references, strict=True)):
            difference = float(differences[row, column])
            index = list(window.start)
            for axis, place in ((window.row_axis, row), (window.column_axis, column)):
                if axis >= 0:
                    index[axis] += place
            cells.append(
                CellView(
                    target=f"{target:.7g}",
                    reference=f"{reference:.7g}",
                    difference=format_number(difference),
                    css_class=classify_difference(difference, shade_scale),
                    is_largest=difference > 0 and tuple(index) == largest_index,
                )
            )
        row_start = window.start[window.row_axis] if window.row_axis >= 0 else 0
        yield row_start + row, cells
