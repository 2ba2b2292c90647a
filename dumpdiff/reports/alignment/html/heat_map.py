"""Heat maps: the worst pair of every component of every layer, as classes of the style sheet."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from ....model.formatting import format_number
from ....model.verdict import DIFFERING_STATES
from ...language import translate
from .tables import compute_error_ratio

_LAYER = re.compile(r"(layers\.\d+)(?:\.(.+))?")

#: Upper limits of error / tolerance of each class but the last, which has none. The first two
#: classes are agreement (up to 1), the other six are difference. Each limit is ten times the one
#: before.
_LIMITS = (0.1, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5)
CLASSES = ("a0", "a1", "p1", "p2", "p3", "p4", "p5", "p6")


@dataclass(frozen=True)
class Cell:
    """One component of one layer, in one phase."""

    css_class: str  #: one of CLASSES, or 'none' if none of its pairs could be compared
    begins_divergence: bool  #: a divergence begins here
    tooltip: str


@dataclass(frozen=True)
class HeatMap:
    """The heat map of one phase."""

    phase: str  #: '' for a heat map without phases
    columns: tuple[str, ...]  #: components; '' for a layer as a whole, such as its residual sums
    #: (layer, a cell for each column); the layer is '' outside the layers
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def build_heat_maps(pairs: pd.DataFrame) -> tuple[HeatMap, ...]:
    """Return one heat map for each phase that has pairs with a known scope."""
    scoped_pairs = pairs[pairs["scope"] != ""]
    table = scoped_pairs[["phase", "scope"]].assign(
        ratio=compute_error_ratio(scoped_pairs),
        differs=scoped_pairs["state"].isin(DIFFERING_STATES),
        introduced=scoped_pairs["state"] == "introduced",
    )
    # Cells stay in the order of execution, which says more than the alphabet.
    cells = table.groupby(["phase", "scope"], sort=False).agg(
        worst=("ratio", "max"),
        n_differing=("differs", "sum"),
        n_pairs=("differs", "size"),
        introduced=("introduced", "any"),
    )
    heat_maps = []
    for phase, rows in cells.groupby("phase", sort=False):
        heat_maps.append(_build_phase_map(str(phase), rows.reset_index()))
    return tuple(heat_maps)


def _build_phase_map(phase: str, table: pd.DataFrame) -> HeatMap:
    names = ("scope", "worst", "n_differing", "n_pairs", "introduced")
    columns = [table[name].tolist() for name in names]
    cells = {}
    for scope, worst, n_differing, n_pairs, introduced in zip(*columns, strict=True):
        cells[scope] = _build_cell(worst, n_differing, n_pairs, introduced)
    return build_heat_map(phase, cells)


def build_heat_map(phase: str, cells_by_scope: Mapping[str, Cell]) -> HeatMap:
    """Arrange cells by scope (``layers.1.mlp``) as layers by components.

    Components come in the order of their first cells, those outside of the layers last.
    """
    cells = {_split_scope(scope): cell for scope, cell in cells_by_scope.items()}
    layers = sorted({layer for layer, _ in cells}, key=_parse_layer_number)
    components = _order_components(cells)
    rows = []
    for layer in layers:
        row_cells = [cells.get((layer, component)) for component in components]
        rows.append((layer, tuple(row_cells)))
    return HeatMap(phase, components, tuple(rows))


def _order_components(keys: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the components of (layer, component): those of layers first, each once."""
    layer_components = []
    other_components = []
    for layer, component in keys:
        if layer:
            layer_components.append(component)
        else:
            other_components.append(component)
    return tuple(dict.fromkeys((*layer_components, *other_components)))


def _split_scope(scope: str) -> tuple[str, str]:
    """Return layer and component; either is '' if the scope has none."""
    match = _LAYER.fullmatch(scope)
    return ("", scope) if match is None else (match[1], match[2] or "")


def _parse_layer_number(layer: str) -> int:
    return int(layer.split(".")[1]) if layer else -1


def _build_cell(worst: float, n_differing: int, n_pairs: int, introduced: bool) -> Cell:
    if math.isnan(worst):
        return Cell("none", introduced, translate("nothing could be compared"))
    tooltip = translate(
        "{count} of {total} pairs diverge, at worst {ratio} × tolerance",
        count=n_differing,
        total=n_pairs,
        ratio=format_number(worst),
    )
    return Cell(get_ratio_class(worst), introduced, tooltip)


def get_ratio_class(ratio: float) -> str:
    """Return the class of an error over its tolerance, 'none' if nothing was compared."""
    return "none" if math.isnan(ratio) else CLASSES[bisect_left(_LIMITS, ratio)]
