"""CSV files of msprobe's monitors, written by msprobe itself, see fixtures/README.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import DumpError
from dumpdiff.gradient_norms import read_norms


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("msprobe_monitor")


def test_both_versions_have_the_same_norms(folder: Path) -> None:
    first, second = read_norms(folder / "clean/v1"), read_norms(folder / "clean/v2")
    assert first.names == second.names
    assert len(first) == 21
    assert first.values == pytest.approx(second.values, abs=5e-7)
    assert first.source == "msprobe's monitor, reduced gradients"
    sizes = dict(zip(first.names, first.sizes.tolist(), strict=True))
    assert sizes["model.embed_tokens.weight"] == 64 * 16
    assert sizes["model.layers.0.input_layernorm.weight"] == 16


def test_steps_count_from_one(folder: Path) -> None:
    first, second = (read_norms(folder / "clean/v2", step=step) for step in (1, 2))
    assert (first.step, second.step) == (1, 2)
    assert first.values[0] != second.values[0]
    with pytest.raises(DumpError, match="has no step 3; it has 1, 2"):
        read_norms(folder / "clean/v2", step=3)


def test_a_fault_is_located(folder: Path) -> None:
    for version in ("v1", "v2"):
        result = dumpdiff.norms(folder / "fault" / version, folder / "clean" / version)
        assert result.verdict == "differ"
    result = dumpdiff.norms(folder / "clean/v1", folder / "clean/v2")
    assert result.verdict == "agree"


def test_the_lowest_rank_is_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "clean/v2/rank_0", tmp_path / "rank_3")
    shutil.copytree(folder / "fault/v2/rank_0", tmp_path / "rank_2")
    norms = read_norms(tmp_path)
    assert len(norms) == 20
    assert norms.notes == ("only rank 2 of 2 ranks was read",)


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "weight_grad_step0-0.csv"
    text = (folder / "clean/v2/rank_0/weight_grad_step0-0.csv").read_text()
    lines = text.splitlines()
    file.write_text("\n".join([*lines[:3], "-1,0,model.x,reduced,1,0,0,0,none,0"]))
    (problem,) = read_norms(file).problems
    assert (problem.file, problem.line) == (file.name, 4)
    assert "expected a name, a step and numbers" in problem.message
    file.write_text(lines[0] + "\n")
    with pytest.raises(DumpError, match="holds no norm of a gradient"):
        read_norms(file)
