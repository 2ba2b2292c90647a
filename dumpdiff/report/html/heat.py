"""The heat map: the worst pair of every component of every layer, as a grid of classes for the style sheet."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...wording import number

_LAYER = re.compile(r"(layers\.\d+)(?:\.(.+))?")
_REST = "(whole layer)"  #: ops of a layer that belong to no component, residual additions say
_OUTSIDE = "outside layers"

#: Error over tolerance -> class of the style sheet: two of agreement, six of disagreement, a decade each.
_STEPS = (0.1, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5)
NAMES = ("a0", "a1", "p1", "p2", "p3", "p4", "p5", "p6")


@dataclass(frozen=True)
class Cell:
    """One component of one layer, in one phase."""

    level: str  #: one of NAMES; '' if no pair of it could be compared
    first: bool  #: a divergence begins here
    scope: str
    words: str  #: the cell said in words


@dataclass(frozen=True)
class Grid:
    """The heat map of one phase."""

    phase: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]  #: layer, and a cell for each column


def ratio(pairs: pd.DataFrame) -> pd.Series[float]:
    """Error over tolerance; infinite where values are not finite on one side only, NaN where nothing was compared."""
    error, tolerance = pairs["error"].to_numpy(dtype=float), pairs["tolerance"].to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(error == 0, 0.0, error / tolerance)
    ratios[pairs["nonfinite_mismatch"].to_numpy(dtype=float) > 0] = np.inf
    return pd.Series(ratios, index=pairs.index)


def grids(pairs: pd.DataFrame) -> tuple[Grid, ...]:
    """One grid for each phase that has pairs with a known scope."""
    known = pairs[pairs["scope"] != ""]
    table = pd.DataFrame(
        {
            "phase": known["phase"],
            "scope": known["scope"],
            "ratio": ratio(known),
            "parts": ~known["state"].isin(("agreeing", "incomparable")),
            "first": known["state"] == "introduced",
        }
    )
    return tuple(_grid(str(phase), rows) for phase, rows in table.groupby("phase", sort=False))


def _grid(phase: str, table: pd.DataFrame) -> Grid:
    cells: dict[tuple[str, str], Cell] = {}
    for scope, rows in table.groupby("scope", sort=False):
        cells[_place(str(scope))] = _cell(phase, str(scope), rows)
    # dict, not set: the order of execution says more than the alphabet
    layers = sorted(dict.fromkeys(layer for layer, _ in cells), key=_by_number)
    inside = list(dict.fromkeys(column for layer, column in cells if layer != _OUTSIDE))
    outside = [column for layer, column in cells if layer == _OUTSIDE]
    columns = (*inside, *(column for column in outside if column not in inside))
    return Grid(phase, columns, tuple((layer, tuple(cells.get((layer, c)) for c in columns)) for layer in layers))


def _place(scope: str) -> tuple[str, str]:
    if (inside := _LAYER.fullmatch(scope)) is None:
        return _OUTSIDE, scope
    return inside[1], inside[2] or _REST


def _by_number(layer: str) -> int:
    return int(layer.split(".")[1]) if layer != _OUTSIDE else -1


def _cell(phase: str, scope: str, rows: pd.DataFrame) -> Cell:
    worst = float(rows["ratio"].max())
    parting = int(rows["parts"].sum())
    if np.isnan(worst):
        return Cell("", False, scope, f"{scope}, {phase}: nothing could be compared")
    words = f"{scope}, {phase}: {parting} of {len(rows)} pairs part, at worst {number(worst)} times the tolerance"
    return Cell(NAMES[int(np.searchsorted(_STEPS, worst))], bool(rows["first"].any()), scope, words)
