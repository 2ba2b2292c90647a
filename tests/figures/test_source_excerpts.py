"""Lines of source code around a finding: only of the file that was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from results import FINDING

from dumpdiff.figures.source_excerpts import find_excerpts
from dumpdiff.model.finding_context import Neighborhood, Node, SourceExcerpt

LINES = [f"line_{number} = {number}" for number in range(1, 31)]


def make_sides(source: str, stack: str) -> tuple[Neighborhood, Neighborhood]:
    """Return the op of FINDING on the target's side, with its recorded stack."""
    node = Node(FINDING.target_ops[0], "Rsqrt", "", "introduced", 0, -1, 0.1, source, stack)
    return Neighborhood((node,), (), 0), Neighborhood((), (), 0)


def find(folder: Path, source: str, code: str) -> list[SourceExcerpt]:
    finding = replace(FINDING, source={"target": source})
    sides = make_sides(source, f"{source} forward: {code}\nother.py:1 main: run()")
    return list(find_excerpts(finding, sides, [folder / "empty", folder]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("\n".join(LINES))
    (tmp_path / "secret.txt").write_text("\n".join(LINES))
    return tmp_path


def test_ten_lines_are_shown_around_the_recorded_one(folder: Path) -> None:
    (excerpt,) = find(folder, "model.py:12", "line_12 = 12")
    assert (excerpt.first_number, excerpt.number) == (7, 12)
    assert excerpt.lines == tuple(LINES[6:16])


@pytest.mark.parametrize("number", [1, 30])
def test_fewer_lines_are_shown_at_an_end_of_the_file(folder: Path, number: int) -> None:
    (excerpt,) = find(folder, f"model.py:{number}", f"line_{number} = {number}")
    assert excerpt.lines[number - excerpt.first_number] == f"line_{number} = {number}"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("model.py:12", "line_12 = 13"),  # another version of the file
        ("model.py:12", "no_line_12 = 12"),  # its end is a line of the file
        ("model.py:99", "line_99 = 99"),
        (f"model.py:{'9' * 5000}", "line_99 = 99"),
        ("secret.txt:12", "line_12 = 12"),
        ("../model.py:12", "line_12 = 12"),
        ("other.py:12", "line_12 = 12"),
        ("model.py:x", "line_12 = 12"),
    ],
)
def test_another_file_is_not_shown(folder: Path, source: str, code: str) -> None:
    assert find(folder, source, code) == []
