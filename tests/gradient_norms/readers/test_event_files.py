"""Event files of TensorBoard with norms, written by its own writer, see fixtures/README.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError
from dumpdiff.gradient_norms import read_norms


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("norm_events")


def test_both_frameworks_tags_are_read(folder: Path) -> None:
    first, second = (read_norms(folder / name) for name in ("mindformers", "lightning"))
    assert first.names == second.names
    assert len(first) == 21
    assert first.values.tolist() == second.values.tolist()
    assert first.source == "event files of TensorBoard"


def test_the_norm_of_all_gradients_is_the_total(folder: Path) -> None:
    norms = read_norms(folder / "lightning")
    assert norms.global_norm == pytest.approx(norms.combined_norm, rel=1e-6)
    assert np.isnan(read_norms(folder / "mindformers").global_norm)


@pytest.mark.parametrize("run", ["mindformers", "lightning"])
def test_steps_count_from_one(folder: Path, run: str) -> None:
    """MindSpore Transformers counts from 1, Lightning from 0."""
    first, second = (read_norms(folder / run, step=step) for step in (1, 2))
    assert (first.step, second.step) == (1, 2)
    assert first.values[0] != second.values[0]
    with pytest.raises(DumpError, match="has no step 3; it has 1, 2"):
        read_norms(folder / run, step=3)


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.norms(folder / "fault", folder / "lightning")
    assert result.verdict == "differ"
    result = dumpdiff.norms(folder / "mindformers", folder / "lightning")
    assert result.verdict == "agree"


def test_one_file_is_read_as_its_folder(folder: Path) -> None:
    (file,) = (folder / "lightning").iterdir()
    assert read_norms(file).values.tolist() == read_norms(folder / "lightning").values.tolist()


def test_a_file_without_norms_names_its_tags(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "lightning").iterdir()
    copy = tmp_path / file.name
    copy.write_bytes(file.read_bytes().replace(b"grad_2.0_norm", b"grad_1.0_norm"))
    with pytest.raises(DumpError, match=r"no scalar in it is the norm of a gradient \(its tags: "):
        read_norms(tmp_path)


def test_a_file_that_was_cut_off_is_read_to_its_end(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "lightning", tmp_path / "x")
    (file,) = (tmp_path / "x").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 3 // 4])
    assert len(read_norms(tmp_path / "x")) == 21
    with pytest.raises(DumpError, match="has no step 3"):
        read_norms(tmp_path / "x", step=3)
