"""The dataflow around a finding as a drawing: where each op and each edge goes, both sides side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ....model.finding_context import Closeup, Edge, Neighbourhood, Node
from ....model.formatting import number

WIDTH, HEIGHT = 196, 44  #: of an op
_ACROSS, _DOWN = 26, 50  #: between ops of one row, between rows
_GUTTER = 84  #: between the two sides
_MARGIN, _HEADER = 12, 34
_SWING = 30  #: how far a curve goes around ops beside it, its number included
_SWEEPS = 4  #: passes that order the ops of each row by their neighbours


@dataclass(frozen=True)
class Box:
    """One op, with its upper left corner."""

    x: float
    y: float
    node: Node
    row: int  #: of the table of pairs, -1 if none of its outputs is there


@dataclass(frozen=True)
class Arrow:
    """One value on its way; ``at`` is where its error is written."""

    path: str
    at: tuple[float, float]
    label: str
    edge: Edge
    words: str


@dataclass(frozen=True)
class Drawing:
    """Both sides; ``matched`` are lines between ops that are drawn beside each other."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    matched: tuple[tuple[float, float, float, float], ...]
    titles: tuple[tuple[float, str], ...]  #: x, words
    box: tuple[float, float] = (WIDTH, HEIGHT)


def draw(closeup: Closeup, rows: Mapping[str, Mapping[str, int]]) -> Drawing:
    """Lay out a closeup; ``rows[side][op]`` is the row of the table of pairs that a click on an op shows."""
    sides = (closeup.target, closeup.reference)
    levels = sorted({node.level for side in sides for node in side.nodes})
    y = {level: _HEADER + place * (HEIGHT + _DOWN) for place, level in enumerate(levels)}
    boxes: list[list[Box]] = []
    titles = []
    left = float(_MARGIN)
    for name, side in zip(("target", "reference"), sides, strict=True):
        slots = _ordered(side)
        across = max((len(row) for row in slots.values()), default=1)
        width = across * WIDTH + (across - 1) * _ACROSS
        x = {
            index: left
            + (width - len(row) * WIDTH - (len(row) - 1) * _ACROSS) / 2
            + place * (WIDTH + _ACROSS)
            for row in slots.values()
            for place, index in enumerate(row)
        }
        boxes.append(
            [Box(x[i], y[n.level], n, rows[name].get(n.op, -1)) for i, n in enumerate(side.nodes)]
        )
        more = f", {side.omitted} more nearby" if side.omitted else ""
        titles.append((left + width / 2, f"{name}{more}"))
        left += width + _GUTTER
    arrows = [
        _arrow(edge, drawn) for side, drawn in zip(sides, boxes, strict=True) for edge in side.edges
    ]
    matched = [
        (
            box.x + WIDTH,
            box.y + HEIGHT / 2,
            boxes[1][box.node.partner].x,
            boxes[1][box.node.partner].y + HEIGHT / 2,
        )
        for box in boxes[0]
        if box.node.partner >= 0
    ]
    height = _HEADER + len(levels) * (HEIGHT + _DOWN) - _DOWN + _MARGIN
    return Drawing(
        left - _GUTTER + 2 * _SWING,
        height,
        (*boxes[0], *boxes[1]),
        tuple(arrows),
        tuple(matched),
        tuple(titles),
    )


def _ordered(side: Neighbourhood) -> dict[int, list[int]]:
    """Ops by level, those of a level ordered by the mean place of their neighbours, so that few edges cross."""
    rows: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(side.nodes):
        rows[node.level].append(index)
    near: dict[int, list[int]] = defaultdict(list)
    for edge in side.edges:
        near[edge.maker].append(edge.reader)
        near[edge.reader].append(edge.maker)
    for sweep in range(_SWEEPS):
        place = {
            index: i / max(1, len(row) - 1) for row in rows.values() for i, index in enumerate(row)
        }
        for level in sorted(rows, reverse=bool(sweep % 2)):
            rows[level].sort(
                key=lambda i: sum(place[j] for j in near[i]) / len(near[i]) if near[i] else place[i]
            )
            place.update(
                {index: i / max(1, len(rows[level]) - 1) for i, index in enumerate(rows[level])}
            )
    return rows


def _arrow(edge: Edge, boxes: list[Box]) -> Arrow:
    """A curve from below the maker to above the reader; around the side where another op is in the way."""
    maker, reader = boxes[edge.maker], boxes[edge.reader]
    x0, y0, x1, y1 = maker.x + WIDTH / 2, maker.y + HEIGHT, reader.x + WIDTH / 2, reader.y
    between = [box for box in boxes if y0 < box.y < y1 - HEIGHT]
    low, high = min(x0, x1), max(x0, x1)
    if any(box.x - 4 < high and low < box.x + WIDTH + 4 for box in between):
        side = max(box.x for box in (*between, maker, reader)) + WIDTH
        x0, y0, x1, y1 = (
            maker.x + WIDTH,
            maker.y + HEIGHT / 2,
            reader.x + WIDTH + 5,
            reader.y + HEIGHT / 2,
        )
        out = side + _SWING * 4 / 3
        path = f"M{x0:g} {y0:g}C{out:g} {y0:g} {out:g} {y1:g} {x1:g} {y1:g}"
        at = side + _SWING, (y0 + y1) / 2 + 4
    else:
        bend = max(18.0, (y1 - y0) / 2)
        path = f"M{x0:g} {y0:g}C{x0:g} {y0 + bend:g} {x1:g} {y1 - bend:g} {x1:g} {y1 - 5:g}"
        at = (x0 + x1) / 2, (y0 + y1) / 2 + 3
    label = "" if math.isnan(edge.error) else number(edge.error)
    shape = f", {edge.shape}" if edge.shape else ""
    words = f"{maker.node.op} to {reader.node.op}, {edge.slot}{shape}: {edge.state}, error {number(edge.error)}"
    return Arrow(path, at, label, edge, words)
