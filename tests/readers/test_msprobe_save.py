"""Values that a script saved by hand with msprobe (``debug.json``), recorded by msprobe itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError, readers


@pytest.fixture
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("msprobe_save")


def test_saved_values_are_ops_with_their_names(folder: Path) -> None:
    (part,) = readers.find_parts(folder / "tensors")
    assert (part.format, part.step, part.has_whole_tensors) == ("msprobe", 0, True)
    trace = readers.read_part(part)
    names = [f"hidden_{number}.0.debug" for number in range(4)]
    assert trace.ops["name"].tolist()[:5] == [*names, "losses.0.debug"]
    assert trace.tensors["slot"].tolist()[4:] == ["output.loss", "output.parts.0", "output.parts.1"]
    assert trace.array(0).shape == (8, 16)
    assert np.linalg.norm(trace.array(0)) == pytest.approx(trace.tensors["norm"].iat[0], rel=1e-6)
    assert not trace.problems


@pytest.mark.parametrize("target", ["tensors", "statistics"])
def test_a_clean_twin_agrees(folder: Path, target: str) -> None:
    assert dumpdiff.align(folder / target, folder / "tensors").verdict == "aligned"


def test_a_fault_is_located(folder: Path) -> None:
    result = dumpdiff.align(folder / "fault", folder / "tensors")
    assert result.verdict == "diverged"
    assert result.first_divergence is not None
    assert result.first_divergence.target_ops == ("hidden_1.0.debug",)


def test_calls_come_first_where_both_were_recorded(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "statistics").rglob("debug.json")
    shutil.copy(file, tmp_path / "debug.json")
    text = (
        file.read_text()
        .replace('"debug"', '"L1"')
        .replace("hidden_0.0.debug", "Torch.tanh.0.forward")
    )
    (tmp_path / "dump.json").write_text(text)
    (part,) = readers.find_parts(tmp_path)
    assert part.path.name == "dump.json"


def test_a_file_that_is_cut_short_is_read_up_to_there(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "statistics").rglob("debug.json")
    text = file.read_text()
    (tmp_path / "debug.json").write_text(text[: text.index("hidden_2.0.debug") + 60])
    trace = dumpdiff.read(tmp_path)
    assert trace.ops["name"].tolist() == ["hidden_0.0.debug", "hidden_1.0.debug"]
    (problem,) = trace.problems
    assert problem.message.startswith("cut short")
    (tmp_path / "debug.json").write_text(text[: text.index('"data"') + 9])
    with pytest.raises(DumpError, match="holds no entry with tensors"):
        dumpdiff.read(tmp_path)
