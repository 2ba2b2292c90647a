"""Files of one norm each, as MindSpore writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff.gradient_norms import read_norms
from dumpdiff.model.errors import DumpError


def test_files_of_mindspore_are_one_norm_each(tmp_path: Path) -> None:
    folder = tmp_path / "rank_0"
    folder.mkdir()
    for number, (name, value) in enumerate(
        [("b.weight", 1.5), ("a.weight", 0.5), ("b.weight", 2.5)]
    ):
        np.save(folder / f"local_norm__{name}_float32_{number}.npy", np.float32(value))
    first = read_norms(tmp_path)
    assert (first.names, first.raw_values.tolist(), first.squared) == (
        ("b.weight", "a.weight"),
        [1.5, 0.5],
        False,
    )
    assert read_norms(tmp_path, 2).names == ("b.weight",)
    with pytest.raises(DumpError, match="has no step 3; its files contain 2 steps"):
        read_norms(tmp_path, 3)
