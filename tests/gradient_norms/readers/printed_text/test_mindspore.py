"""Local norms that MindSpore and its trainer print."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff.gradient_norms import read_norms
from dumpdiff.model.errors import DumpError
from gradient_norms.sides import MINDFORMERS, SAMPLES, write_text


def test_the_trainers_block_contains_squares_and_sizes() -> None:
    norms = read_norms(MINDFORMERS)
    assert norms.squared
    assert norms.values == pytest.approx(np.sqrt([2.4751013e-02, 9.5549629e-05, 5.1672518e-02]))
    assert norms.sizes.tolist() == [1024, 1024, 64]
    assert norms.names == ("", "", "")


def test_norms_that_numpy_leaves_out_are_counted(tmp_path: Path) -> None:
    log = write_text(
        tmp_path, "norm_size: (9, 8, 7, 6, 5, 4)\nlocal_norm:\n[1.5 2.5 ...\n 4.5 5.5]\n"
    )
    norms = read_norms(log)
    assert norms.sizes.tolist() == [9, 8, 5, 4]
    assert norms.notes == (
        "2 of 6 norms are left out of the print; set numpy.set_printoptions(threshold=sys.maxsize)",
    )


def test_the_monitors_lines_contain_roots(tmp_path: Path) -> None:
    lines = [
        f"2026-01-01 - INFO - Epoch:[  1/  2], step:[    {step}/    8] "
        f"local_norm/{name}: {0.1 * step}{digits}"
        for step in (1, 2)
        for name, digits in (("fc.weight", "25"), ("fc.bias", "50"))
    ]
    norms = read_norms(write_text(tmp_path, "\n".join(lines)), 2)
    assert (norms.names, norms.squared, norms.step) == (("fc.weight", "fc.bias"), False, 2)
    assert norms.raw_values == pytest.approx([0.225, 0.25])
    assert norms.raw_rounding == pytest.approx([5e-4, 5e-4])


def test_moments_and_weights_of_the_monitor_are_no_gradients() -> None:
    with pytest.raises(DumpError, match="contains no gradient norms"):
        read_norms(SAMPLES / "logs" / "mindformers_1.7.log")


def test_a_repeated_parameter_begins_the_next_step(tmp_path: Path) -> None:
    content = "".join(
        f"dump local norm: \n{name}\n{value}\n"
        for value in (0.5, 0.25)
        for name in ("a.weight", "b.bias")
    )
    assert read_norms(write_text(tmp_path, content)).raw_values.tolist() == [0.5, 0.5]
    assert read_norms(write_text(tmp_path, content), 2).raw_values.tolist() == [0.25, 0.25]
