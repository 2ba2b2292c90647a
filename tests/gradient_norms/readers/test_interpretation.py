"""What a log's own global norm says of its local ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import MEGATRON, MINDFORMERS, text


@pytest.mark.parametrize("step", range(4, 10))
def test_squares_sum_to_the_square_of_the_global_norm(step: int) -> None:
    norms = read_norms(MINDFORMERS, step)
    assert norms.combined_norm == pytest.approx(norms.global_norm, rel=1e-6)
    assert norms.squared_reason.endswith(f"their sum is the square of the global norm {norms.global_norm:g}")


@pytest.mark.parametrize(("given", "squared"), [((0.09, 0.16), True), ((0.3, 0.4), False)])
def test_the_global_norm_tells_squares_from_roots(
    tmp_path: Path, given: tuple[float, ...], squared: bool
) -> None:
    step = "{ Epoch:[  1/  1], step:[    1/    8], loss: 4.1, global_norm: [0.5], lr: 0.1"
    norms = read_norms(
        text(tmp_path, f"norm_size: (4, 4)\nlocal_norm:\n[{given[0]} {given[1]}]\n{step}\n")
    )
    assert norms.squared is squared
    assert norms.values == pytest.approx([0.3, 0.4])
    assert ("although that form prints the other" in norms.squared_reason) is not squared


def test_a_list_that_was_clipped_is_put_right(tmp_path: Path) -> None:
    said = MEGATRON.read_text().split("print torch local norm:")
    norms = read_norms(text(tmp_path, f"{said[0]}print torch local norm:{said[3]}"))
    assert norms.notes == ("they were taken after clipping to 1: undone by 1.4e0",)
    assert norms.values == pytest.approx(read_norms(MEGATRON).values, rel=0.25, abs=1e-3)
    assert norms.combined_norm == pytest.approx(1.418, rel=1e-4)


def test_norms_that_are_less_than_the_global_one_are_some_of_them(tmp_path: Path) -> None:
    step = "{ Epoch:[  1/  1], step:[    1/    8], loss: 4.1, global_norm: [0.9], lr: 0.1"
    norms = read_norms(text(tmp_path, f"local_norm:\n[0.09 0.16]\n{step}\n"))
    assert "less than the global norm 0.9: parameters are missing" in norms.notes[0]
