"""The dataflow around a finding as a diagram: positions of ops and edges, for both sides."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....model.finding_context import Edge, FindingContext, Neighborhood, Node
from ....model.formatting import format_number
from ...language import translate

WIDTH, HEIGHT = 196, 44  #: of an op, in pixels like all lengths here
_COLUMN_GAP, _ROW_GAP = 26, 50  #: between ops of one row, between rows
_SIDE_GAP = 84  #: between the two sides
_MARGIN, _HEADER = 12, 34
_DETOUR = 30  #: how far a curve goes around other ops; its label fits into this
_CLEARANCE = 4  #: an edge this near to an op goes around it
_SWEEPS = 4  #: passes that order the ops of each row by their neighbors


@dataclass(frozen=True)
class Box:
    """One op, with its upper left corner."""

    x: float
    y: float
    node: Node
    row: int  #: in the table of pairs, -1 if none of its outputs is in it


@dataclass(frozen=True)
class Arrow:
    """One value on its way from op to op."""

    path: str
    label_position: tuple[float, float]
    label: str  #: its error, '' if unknown
    edge: Edge
    tooltip: str


@dataclass(frozen=True)
class Diagram:
    """Both sides of the dataflow around a finding."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    #: lines between paired ops: x and y of both ends
    pair_lines: tuple[tuple[float, float, float, float], ...]
    titles: tuple[tuple[float, str], ...]  #: x, text
    box_size: tuple[float, float] = (WIDTH, HEIGHT)


def draw_dataflow(context: FindingContext, rows: Mapping[str, Mapping[str, int]]) -> Diagram:
    """Return the diagram of a finding context.

    ``rows[side][op]`` is the row of the table of pairs that a click on an op shows.
    """
    sides = (context.target, context.reference)
    levels = sorted({node.level for side in sides for node in side.nodes})
    y_of_level = {level: _HEADER + i * (HEIGHT + _ROW_GAP) for i, level in enumerate(levels)}
    boxes: list[list[Box]] = []
    arrows: list[Arrow] = []
    titles = []
    side_left = float(_MARGIN)
    for name, side in zip(("target", "reference"), sides, strict=True):
        ordered_rows = _order_rows(side)
        width = max((_compute_row_width(row) for row in ordered_rows.values()), default=WIDTH)
        x_of_node = _place_nodes(ordered_rows, side_left, width)
        side_boxes = []
        for index, node in enumerate(side.nodes):
            row = rows[name].get(node.op, -1)
            side_boxes.append(Box(x_of_node[index], y_of_level[node.level], node, row))
        boxes.append(side_boxes)
        arrows += [_draw_arrow(edge, side_boxes) for edge in side.edges]
        title = translate(name)
        if side.omitted:
            title += translate(", {count} more nearby", count=side.omitted)
        titles.append((side_left + width / 2, title))
        side_left += width + _SIDE_GAP
    return Diagram(
        width=side_left - _SIDE_GAP + 2 * _DETOUR,
        height=_HEADER + len(levels) * (HEIGHT + _ROW_GAP) - _ROW_GAP + _MARGIN,
        boxes=(*boxes[0], *boxes[1]),
        arrows=tuple(arrows),
        pair_lines=tuple(_draw_pair_lines(boxes[0], boxes[1])),
        titles=tuple(titles),
    )


def _compute_row_width(row: Sequence[int]) -> int:
    return len(row) * WIDTH + (len(row) - 1) * _COLUMN_GAP


def _place_nodes(
    ordered_rows: Mapping[int, Sequence[int]], side_left: float, width: float
) -> dict[int, float]:
    """Return the x of each node; rows are centered in ``width``."""
    x_of_node = {}
    for row in ordered_rows.values():
        row_left = side_left + (width - _compute_row_width(row)) / 2
        for column, index in enumerate(row):
            x_of_node[index] = row_left + column * (WIDTH + _COLUMN_GAP)
    return x_of_node


def _draw_pair_lines(
    target_boxes: Sequence[Box], reference_boxes: Sequence[Box]
) -> list[tuple[float, float, float, float]]:
    lines = []
    for box in target_boxes:
        if box.node.partner >= 0:
            partner = reference_boxes[box.node.partner]
            lines.append((box.x + WIDTH, box.y + HEIGHT / 2, partner.x, partner.y + HEIGHT / 2))
    return lines


def _order_rows(side: Neighborhood) -> dict[int, list[int]]:
    """Return the nodes by level, each level ordered so that few edges cross.

    The order is that of the mean position of each node's neighbors (barycenter heuristic).
    """
    rows: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(side.nodes):
        rows[node.level].append(index)
    neighbors: dict[int, list[int]] = defaultdict(list)
    for edge in side.edges:
        neighbors[edge.producer].append(edge.consumer)
        neighbors[edge.consumer].append(edge.producer)
    for sweep in range(_SWEEPS):
        positions: dict[int, float] = {}
        for row in rows.values():
            positions.update(_compute_positions(row))
        for level in sorted(rows, reverse=bool(sweep % 2)):
            means = {i: _compute_mean_position(i, neighbors[i], positions) for i in rows[level]}
            rows[level].sort(key=means.__getitem__)
            positions.update(_compute_positions(rows[level]))
    return rows


def _compute_positions(row: Sequence[int]) -> dict[int, float]:
    """Return the position of each node of a row, in 0..1."""
    return {index: place / max(1, len(row) - 1) for place, index in enumerate(row)}


def _compute_mean_position(
    index: int, neighbors: Sequence[int], positions: Mapping[int, float]
) -> float:
    if not neighbors:
        return positions[index]
    return sum(positions[neighbor] for neighbor in neighbors) / len(neighbors)


def _draw_arrow(edge: Edge, boxes: Sequence[Box]) -> Arrow:
    """Return a curve from producer to consumer; it goes around other ops on the right."""
    producer, consumer = boxes[edge.producer], boxes[edge.consumer]
    x0, y0 = producer.x + WIDTH / 2, producer.y + HEIGHT
    x1, y1 = consumer.x + WIDTH / 2, consumer.y
    boxes_between = [box for box in boxes if y0 < box.y < y1 - HEIGHT]
    low, high = min(x0, x1) - _CLEARANCE, max(x0, x1) + _CLEARANCE
    if any(box.x < high and low < box.x + WIDTH for box in boxes_between):
        right_edge = max(box.x for box in (*boxes_between, producer, consumer)) + WIDTH
        x0, y0 = producer.x + WIDTH, producer.y + HEIGHT / 2
        x1, y1 = consumer.x + WIDTH + 5, consumer.y + HEIGHT / 2
        bend_x = right_edge + _DETOUR * 4 / 3
        path = f"M{x0:g} {y0:g}C{bend_x:g} {y0:g} {bend_x:g} {y1:g} {x1:g} {y1:g}"
        label_position = right_edge + _DETOUR, (y0 + y1) / 2 + 4
    else:
        bend = max(18.0, (y1 - y0) / 2)
        path = f"M{x0:g} {y0:g}C{x0:g} {y0 + bend:g} {x1:g} {y1 - bend:g} {x1:g} {y1 - 5:g}"
        label_position = (x0 + x1) / 2, (y0 + y1) / 2 + 3
    label = "" if math.isnan(edge.error) else format_number(edge.error)
    shape = f", {edge.shape}" if edge.shape else ""
    ends = translate("{first} to {last}", first=producer.node.op, last=consumer.node.op)
    place = f"{ends}, {edge.slot}{shape}"
    error = translate("error {error}", error=format_number(edge.error))
    tooltip = f"{place}{translate(': ')}{translate(edge.state)}{translate(', ')}{error}"
    return Arrow(path, label_position, label, edge, tooltip)
