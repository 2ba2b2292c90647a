"""The drawing of a neighbourhood: rows by level, both sides beside each other, nothing on top of anything else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from dumpdiff.model.finding_context import FindingContext, Edge, Neighborhood, Node
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.html.dataflow_diagram import HEIGHT, WIDTH, Box, Diagram, draw_dataflow
from dumpdiff.reports.alignment.html.tables import find_rows_of_ops


def node(op: str, level: int, partner: int = -1) -> Node:
    return Node(op, "Add", "layers.0", "agreeing", level, partner, 1e-7, "", "")


def edge(maker: int, reader: int, error: float = 1e-7) -> Edge:
    return Edge(maker, reader, "input.0", "2 x 3", error, "agreeing")


def side(nodes: list[Node], *edges: Edge, omitted: int = 0) -> Neighborhood:
    return Neighborhood(tuple(nodes), edges, omitted)


def drawn(target: Neighborhood, reference: Neighborhood) -> Diagram:
    return draw_dataflow(FindingContext(1, target, reference, None, None), {"target": {"a": 7}, "reference": {}})


def overlap(one: Box, other: Box) -> bool:
    return abs(one.x - other.x) < WIDTH and abs(one.y - other.y) < HEIGHT


def test_matched_ops_stand_at_one_height_with_a_line_between_them() -> None:
    drawing = drawn(
        side([node("a", 0, 0), node("b", 1), node("c", 2, 1)], edge(0, 1), edge(1, 2)),
        side([node("A", 0, 0), node("C", 2, 2)], edge(0, 1)),
    )
    place = {box.node.op: box for box in drawing.boxes}
    assert place["a"].y == place["A"].y < place["b"].y < place["c"].y == place["C"].y
    assert len(drawing.matched) == 2
    for x1, y1, x2, y2 in drawing.matched:
        assert y1 == y2
        assert x1 < x2


def test_an_op_knows_its_row_in_the_table() -> None:
    drawing = drawn(side([node("a", 0), node("b", 0)]), side([]))
    assert [box.row for box in drawing.boxes] == [7, -1]


def test_ops_of_a_row_are_ordered_so_that_edges_do_not_cross() -> None:
    nodes = [node(op, level) for op, level in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]
    drawing = drawn(side(nodes, edge(0, 3), edge(1, 2)), side([]))
    x = {box.node.op: box.x for box in drawing.boxes}
    assert (x["a"] < x["b"]) == (x["d"] < x["c"])


def test_an_edge_goes_around_the_ops_in_its_way() -> None:
    drawing = drawn(
        side([node("a", 0), node("b", 1), node("c", 2)], edge(0, 1), edge(1, 2), edge(0, 2)),
        side([]),
    )
    straight, _, around = drawing.arrows
    right = max(box.x for box in drawing.boxes) + WIDTH
    assert straight.at[0] < right < around.at[0] < drawing.width


def test_what_is_not_compared_has_no_number() -> None:
    drawing = drawn(side([node("a", 0), node("b", 1)], edge(0, 1, float("nan"))), side([]))
    assert drawing.arrows[0].label == ""
    assert drawing.arrows[0].words == "a to b, input.0, 2 x 3: agreeing, error -"


def test_what_was_left_out_is_said() -> None:
    drawing = drawn(side([node("a", 0)], omitted=3), side([node("b", 0)]))
    assert [words for _, words in drawing.titles] == ["target, 3 more nearby", "reference"]


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("demo_mindspore", "demo_pytorch"),
        ("ms_graph_bug_w1", "v6.0_api_stack"),
        ("ms_mf_attn_scale", "pt_none"),
    ],
)
def test_real_neighbourhoods_fit(
    aligned: Callable[[str, str], Result], target: str, reference: str
) -> None:
    result = aligned(target, reference)
    for closeup in result.finding_contexts:
        drawing = draw_dataflow(closeup, find_rows_of_ops(result.pairs))
        assert len(drawing.boxes) == len(closeup.target.nodes) + len(closeup.reference.nodes) > 2
        assert not [pair for pair in combinations(drawing.boxes, 2) if overlap(*pair)]
        assert all(0 <= box.x <= drawing.width - WIDTH for box in drawing.boxes)
        assert all(0 <= box.y <= drawing.height - HEIGHT for box in drawing.boxes)
        assert all(0 <= arrow.at[0] <= drawing.width for arrow in drawing.arrows)
