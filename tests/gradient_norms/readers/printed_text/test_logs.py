"""The steps and ranks of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import MEGATRON, MINDFORMERS, read_error, write_text


def test_the_step_of_a_block_is_on_the_line_after_it() -> None:
    assert read_norms(MINDFORMERS).step == 4  # the run was resumed
    assert read_norms(MINDFORMERS, 5).raw_values[0] == 2.0777809e-02


def test_steps_are_counted_across_epochs() -> None:
    later = read_norms(MINDFORMERS, 9)
    assert later.combined_norm == pytest.approx(later.global_norm, rel=1e-6)


def test_a_missing_step_is_rejected() -> None:
    assert read_error(MEGATRON, 7).endswith("has no norms of step 7; it has those of steps 1 to 3")


def test_ranks_in_one_log_are_combined(tmp_path: Path) -> None:
    content = "\n".join(
        f"[default{rank}]:step:[1] local_norm/layers.{rank}.wq.weight: 0.5" for rank in (0, 1)
    )
    norms = read_norms(write_text(tmp_path, content))
    assert norms.names == ("layers.0.wq.weight", "layers.1.wq.weight")
    assert norms.notes == ("2 ranks hold 2 parameters together",)


def test_ranks_with_different_norms_are_noted(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_text(tmp_path, f"step:[1] local_norm/wq.weight: 0.{5 + rank}00", f"worker_{rank}.log")
    norms = read_norms(tmp_path)
    assert norms.raw_values.tolist() == [0.5]
    assert "1 parameters have different norms on different ranks" in norms.notes[1]
