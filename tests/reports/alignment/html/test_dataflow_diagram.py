"""The diagram of a dataflow: paired ops at one height, nothing overlaps, edges avoid ops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from dumpdiff.model.finding_context import Edge, FindingContext, Neighborhood, Node
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.html.dataflow_diagram import (
    HEIGHT,
    WIDTH,
    Box,
    Diagram,
    draw_dataflow,
)
from dumpdiff.reports.alignment.html.tables import find_rows_of_ops


def make_node(op: str, level: int, partner: int = -1) -> Node:
    return Node(op, "Add", "layers.0", "agreeing", level, partner, 1e-7, "", "")


def make_edge(producer: int, consumer: int, error: float = 1e-7) -> Edge:
    return Edge(producer, consumer, "input.0", "2 x 3", error, "agreeing")


def make_side(nodes: list[Node], *edges: Edge, omitted: int = 0) -> Neighborhood:
    return Neighborhood(tuple(nodes), edges, omitted)


def draw_sides(target: Neighborhood, reference: Neighborhood) -> Diagram:
    return draw_dataflow(
        FindingContext(1, target, reference, None, None), {"target": {"a": 7}, "reference": {}}
    )


def do_overlap(box: Box, other: Box) -> bool:
    return abs(box.x - other.x) < WIDTH and abs(box.y - other.y) < HEIGHT


def test_paired_ops_have_one_height_and_a_line_between_them() -> None:
    diagram = draw_sides(
        make_side(
            [make_node("a", 0, 0), make_node("b", 1), make_node("c", 2, 1)],
            make_edge(0, 1),
            make_edge(1, 2),
        ),
        make_side([make_node("A", 0, 0), make_node("C", 2, 2)], make_edge(0, 1)),
    )
    place = {box.node.op: box for box in diagram.boxes}
    assert place["a"].y == place["A"].y < place["b"].y < place["c"].y == place["C"].y
    assert len(diagram.pair_lines) == 2
    for x1, y1, x2, y2 in diagram.pair_lines:
        assert y1 == y2
        assert x1 < x2


def test_an_op_knows_its_row_in_the_table() -> None:
    diagram = draw_sides(make_side([make_node("a", 0), make_node("b", 0)]), make_side([]))
    assert [box.row for box in diagram.boxes] == [7, -1]


def test_ops_of_a_row_are_ordered_so_that_edges_do_not_cross() -> None:
    nodes = [make_node(op, level) for op, level in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]
    diagram = draw_sides(make_side(nodes, make_edge(0, 3), make_edge(1, 2)), make_side([]))
    x = {box.node.op: box.x for box in diagram.boxes}
    assert (x["a"] < x["b"]) == (x["d"] < x["c"])


def test_an_edge_goes_around_the_ops_in_its_way() -> None:
    diagram = draw_sides(
        make_side(
            [make_node("a", 0), make_node("b", 1), make_node("c", 2)],
            make_edge(0, 1),
            make_edge(1, 2),
            make_edge(0, 2),
        ),
        make_side([]),
    )
    straight, _, detour = diagram.arrows
    right_edge = max(box.x for box in diagram.boxes) + WIDTH
    assert straight.label_position[0] < right_edge < detour.label_position[0] < diagram.width


def test_what_is_not_compared_has_no_number() -> None:
    diagram = draw_sides(
        make_side([make_node("a", 0), make_node("b", 1)], make_edge(0, 1, float("nan"))),
        make_side([]),
    )
    assert diagram.arrows[0].label == ""
    assert diagram.arrows[0].tooltip == "a to b, input.0, 2 x 3: agreeing, error -"


def test_omitted_ops_are_counted_in_the_title() -> None:
    diagram = draw_sides(make_side([make_node("a", 0)], omitted=3), make_side([make_node("b", 0)]))
    assert [title for _, title in diagram.titles] == ["target, 3 more nearby", "reference"]


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("demo_mindspore", "demo_pytorch"),
        ("ms_graph_bug_w1", "v6.0_api_stack"),
        ("ms_mf_attn_scale", "pt_none"),
    ],
)
def test_real_neighborhoods_fit(
    aligned: Callable[[str, str], Result], target: str, reference: str
) -> None:
    result = aligned(target, reference)
    for context in result.finding_contexts:
        diagram = draw_dataflow(context, find_rows_of_ops(result.pairs))
        assert len(diagram.boxes) == len(context.target.nodes) + len(context.reference.nodes) > 2
        assert not [pair for pair in combinations(diagram.boxes, 2) if do_overlap(*pair)]
        assert all(0 <= box.x <= diagram.width - WIDTH for box in diagram.boxes)
        assert all(0 <= box.y <= diagram.height - HEIGHT for box in diagram.boxes)
        assert all(0 <= arrow.label_position[0] <= diagram.width for arrow in diagram.arrows)
