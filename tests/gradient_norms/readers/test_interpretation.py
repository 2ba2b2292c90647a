"""What a log's global norm tells about its local norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import MEGATRON, MINDFORMERS, write_text


@pytest.mark.parametrize("step", range(4, 10))
def test_squares_sum_to_the_square_of_the_global_norm(step: int) -> None:
    norms = read_norms(MINDFORMERS, step)
    assert norms.combined_norm == pytest.approx(norms.global_norm, rel=1e-6)
    assert norms.squared_reason.endswith(
        f"their sum is the square of the global norm {norms.global_norm:g}"
    )


@pytest.mark.parametrize(("local_norms", "squared"), [((0.09, 0.16), True), ((0.3, 0.4), False)])
def test_the_global_norm_tells_squares_from_roots(
    tmp_path: Path, local_norms: tuple[float, ...], squared: bool
) -> None:
    step = "{ Epoch:[  1/  1], step:[    1/    8], loss: 4.1, global_norm: [0.5], lr: 0.1"
    norms = read_norms(
        write_text(
            tmp_path,
            f"norm_size: (4, 4)\nlocal_norm:\n[{local_norms[0]} {local_norms[1]}]\n{step}\n",
        )
    )
    assert norms.squared is squared
    assert norms.values == pytest.approx([0.3, 0.4])
    assert ("although that format prints the other" in norms.squared_reason) is not squared


def test_clipped_norms_are_corrected(tmp_path: Path) -> None:
    title = "print torch local norm:"
    sections = MEGATRON.read_text().split(title)
    norms = read_norms(write_text(tmp_path, f"{sections[0]}{title}{sections[3]}"))
    assert norms.notes == ("they were recorded after clipping to 1; corrected by the factor 1.4e0",)
    assert norms.values == pytest.approx(read_norms(MEGATRON).values, rel=0.25, abs=1e-3)
    assert norms.combined_norm == pytest.approx(1.418, rel=1e-4)


def test_norms_that_combine_to_less_than_the_global_norm_are_incomplete(tmp_path: Path) -> None:
    step = "{ Epoch:[  1/  1], step:[    1/    8], loss: 4.1, global_norm: [0.9], lr: 0.1"
    norms = read_norms(write_text(tmp_path, f"local_norm:\n[0.09 0.16]\n{step}\n"))
    assert "less than the global norm 0.9: parameters are missing" in norms.notes[0]
