"""A log's steps and ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import MEGATRON, MINDFORMERS, refused, text


def test_its_step_is_that_of_the_line_below() -> None:
    assert read_norms(MINDFORMERS).step == 4  # the run was resumed
    assert read_norms(MINDFORMERS, 5).raw_values[0] == 2.0777809e-02


def test_steps_that_begin_anew_within_an_epoch_are_counted_on() -> None:
    later = read_norms(MINDFORMERS, 9)
    assert later.combined_norm == pytest.approx(later.global_norm, rel=1e-6)


def test_a_step_that_the_log_has_not() -> None:
    assert refused(MEGATRON, 7).endswith("has no norms of step 7; it has those of steps 1 to 3")


def test_ranks_in_one_log_are_put_together(tmp_path: Path) -> None:
    said = "\n".join(
        f"[default{rank}]:step:[1] local_norm/layers.{rank}.wq.weight: 0.5" for rank in (0, 1)
    )
    norms = read_norms(text(tmp_path, said))
    assert norms.names == ("layers.0.wq.weight", "layers.1.wq.weight")
    assert norms.notes == ("2 ranks hold 2 parameters together",)


def test_logs_of_ranks_with_data_of_their_own_are_told_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        text(tmp_path, f"step:[1] local_norm/wq.weight: 0.{5 + rank}00", f"worker_{rank}.log")
    norms = read_norms(tmp_path)
    assert norms.raw_values.tolist() == [0.5]
    assert "of 1 parameters ranks print other norms" in norms.notes[1]
