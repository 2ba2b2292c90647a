"""The curves of two trainings: well-formed, with both lines, the limit, and every spike."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import numpy as np
from training_logs.log_lines import format_megatron_log

from dumpdiff.reports.stages import curves
from dumpdiff.training_logs import LogComparison, compare, megatron

SVG = "{http://www.w3.org/2000/svg}"


def draw_svg(comparison: LogComparison) -> ElementTree.Element:
    stream = io.BytesIO()
    curves.write(comparison, stream)
    return ElementTree.fromstring(stream.getvalue())


def compare_losses(target: np.ndarray, reference: np.ndarray) -> LogComparison:
    sides = [megatron.parse(format_megatron_log(loss), "a.log") for loss in (target, reference)]
    assert sides[0] is not None
    assert sides[1] is not None
    return compare(sides[0], sides[1])


def read_lines(root: ElementTree.Element, kind: str) -> list[str]:
    return [
        line.attrib["points"]
        for line in root.iter(f"{SVG}polyline")
        if line.attrib["class"] == kind
    ]


def test_losses_their_distance_norms_and_rates_are_drawn() -> None:
    loss = np.linspace(8, 2, 50)
    root = draw_svg(compare_losses(loss + 0.001, loss))
    titles = [text.text for text in root.iter(f"{SVG}text") if text.attrib.get("class") == "title"]
    assert titles == ["loss", "|target - reference|", "global norm", "learning rate"]
    assert (
        len(read_lines(root, "target")),
        len(read_lines(root, "reference")),
        len(read_lines(root, "distance")),
    ) == (3, 3, 1)


def test_runs_without_any_distance_have_no_drawing_of_it() -> None:
    loss = np.linspace(8, 2, 50)
    assert read_lines(draw_svg(compare_losses(loss, loss)), "distance") == []


def test_a_lasting_divergence_is_marked_in_every_panel() -> None:
    loss = np.linspace(8, 2, 400)
    target = loss + 1e-5 * np.random.default_rng(0).normal(size=400)
    target[200:] += 0.2
    comparison = compare_losses(target, loss)
    marks = [
        line
        for line in draw_svg(comparison).iter(f"{SVG}line")
        if line.attrib["class"] == "divergence"
    ]
    assert comparison.divergence_step == 201
    assert len(marks) == 4


def test_a_spike_of_a_long_run_stays_visible() -> None:
    loss = np.full(5000, 2.0)
    loss[3210] = 9.0
    points = read_lines(draw_svg(compare_losses(loss, np.full(5000, 2.0))), "target")[0]
    heights = [float(y) for y in re.findall(r",([\d.]+)", points)]
    assert len(heights) < 2000
    assert heights.count(min(heights)) == 1


def test_a_few_steps_are_dots_too_and_none_lies_outside() -> None:
    loss = np.array([6.5, 6.1])
    sides = [
        megatron.parse(format_megatron_log(values), "a.log")
        for values in (loss, np.append(loss, [5.9, 5.7]))
    ]
    assert None not in sides
    comparison = compare(*filter(None, sides))
    dots = [dot.attrib for dot in draw_svg(comparison).iter(f"{SVG}circle")]
    assert len(dots) == 4 + 4 + 2  # the rate on a line is that of the next step
    assert {float(dot["cx"]) for dot in dots} == {70, 940}


def test_each_figure_is_an_element_of_a_page() -> None:
    loss = np.linspace(8, 2, 50)
    pieces = [
        ElementTree.fromstring(piece)
        for piece in curves.draw_figures(compare_losses(loss + 0.001, loss))
    ]
    assert [piece.attrib["aria-label"] for piece in pieces] == [
        "loss",
        "|target - reference|",
        "global norm",
        "learning rate",
    ]
    assert all(
        "style" not in element.attrib and element.tag != "style"
        for piece in pieces
        for element in piece.iter()
    )
