"""The heat map: the worst pair of every component of every layer, as a grid of classes for the style sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ....model.formatting import number
from .tables import ratio

_LAYER = re.compile(r"(layers\.\d+)(?:\.(.+))?")

#: Error over tolerance -> class of the style sheet: two of agreement, six of disagreement, a decade each.
_STEPS = (0.1, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5)
NAMES = ("a0", "a1", "p1", "p2", "p3", "p4", "p5", "p6")


@dataclass(frozen=True)
class Cell:
    """One component of one layer, in one phase."""

    level: (
        str  #: class of the style sheet: one of NAMES, or 'none' if no pair of it could be compared
    )
    first: bool  #: a divergence begins here
    words: str  #: the cell said in words


@dataclass(frozen=True)
class Grid:
    """The heat map of one phase."""

    phase: str  #: '' where there are none
    columns: tuple[
        str, ...
    ]  #: components; '' for what belongs to a layer as a whole, residual additions say
    rows: tuple[
        tuple[str, tuple[Cell | None, ...]], ...
    ]  #: layer ('' outside the layers), a cell for each column


def grids(pairs: pd.DataFrame) -> tuple[Grid, ...]:
    """One grid for each phase that has pairs with a known scope."""
    known = pairs[pairs["scope"] != ""]
    table = known[["phase", "scope"]].assign(
        ratio=ratio(known),
        parts=~known["state"].isin(("agreeing", "incomparable")),
        first=known["state"] == "introduced",
    )
    # in the order of execution, which says more than the alphabet
    cells = table.groupby(["phase", "scope"], sort=False).agg(
        worst=("ratio", "max"),
        parts=("parts", "sum"),
        pairs=("parts", "size"),
        first=("first", "any"),
    )
    return tuple(
        _grid(str(phase), rows.reset_index()) for phase, rows in cells.groupby("phase", sort=False)
    )


def _grid(phase: str, table: pd.DataFrame) -> Grid:
    columns = (table[name].tolist() for name in ("scope", "worst", "parts", "pairs", "first"))
    return grid(phase, {scope: _cell(*figures) for scope, *figures in zip(*columns, strict=True)})


def grid(phase: str, by_scope: Mapping[str, Cell]) -> Grid:
    """Cells by scope (``layers.1.mlp``) as layers by components, components in the order in which they come."""
    cells = {_place(scope): cell for scope, cell in by_scope.items()}
    layers = sorted({layer for layer, _ in cells}, key=_by_number)
    inside = list(dict.fromkeys(column for layer, column in cells if layer))
    outside = [column for layer, column in cells if not layer]
    names = (*inside, *(column for column in outside if column not in inside))
    return Grid(
        phase,
        names,
        tuple((layer, tuple(cells.get((layer, name)) for name in names)) for layer in layers),
    )


def _place(scope: str) -> tuple[str, str]:
    """Layer and component; the layer is '' outside the layers, the component '' for what belongs to none."""
    inside = _LAYER.fullmatch(scope)
    return ("", scope) if inside is None else (inside[1], inside[2] or "")


def _by_number(layer: str) -> int:
    return int(layer.split(".")[1]) if layer else -1


def _cell(worst: float, parts: int, pairs: int, first: bool) -> Cell:
    if np.isnan(worst):
        return Cell("none", first, "nothing could be compared")
    words = f"{parts} of {pairs} pairs part, at worst {number(worst)} × tolerance"
    return Cell(NAMES[int(np.searchsorted(_STEPS, worst))], first, words)
