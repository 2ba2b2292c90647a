"""Any folder of tensors: the files that are read, their names, and what aligns."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff import DumpError, readers
from dumpdiff.model.arrays import AnyArray


@pytest.fixture
def tensors() -> dict[str, AnyArray]:
    random = np.random.default_rng(5)
    return {f"layer{i}": random.standard_normal((4, 5)).astype(np.float32) for i in range(12)}


def write_npy(folder: Path, tensors: dict[str, AnyArray]) -> Path:
    folder.mkdir()
    for name, array in tensors.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_every_kind_of_file_is_read_and_paths_are_names(
    tmp_path: Path, tensors: dict[str, AnyArray]
) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.numpy")
    a, b, c, d = (tensors[f"layer{i}"] for i in range(4))
    (tmp_path / "block.0").mkdir()
    np.save(tmp_path / "block.0" / "a.npy", a)
    np.savez(tmp_path / "b.npz", out=b)
    safetensors.save_file({"out": c}, tmp_path / "c.safetensors")
    torch.save({"state": {"out": torch.from_numpy(d)}}, tmp_path / "d.pt")
    trace = dumpdiff.read(tmp_path)
    assert trace.ops["name"].tolist() == ["b.out", "block.0.a", "c.out", "d.state.out"]
    for row, array in enumerate((b, a, c, d)):
        assert np.array_equal(trace.array(row), array)


def test_numbers_in_names_are_ordered_by_value(
    tmp_path: Path, tensors: dict[str, AnyArray]
) -> None:
    trace = dumpdiff.read(write_npy(tmp_path / "dump", tensors))
    assert trace.ops["name"].tolist() == list(tensors)


def test_clean_twins_agree_and_a_fault_is_located(
    tmp_path: Path, tensors: dict[str, AnyArray]
) -> None:
    reference = write_npy(tmp_path / "reference", tensors)
    twin = write_npy(tmp_path / "twin", tensors)
    faulty = write_npy(tmp_path / "faulty", tensors | {"layer7": tensors["layer7"] * 1.01})
    assert dumpdiff.align(twin, reference).verdict != "diverged"
    result = dumpdiff.align(faulty, reference)
    assert result.verdict == "diverged"
    assert result.first_divergence is not None
    assert result.first_divergence.target_ops == ("layer7",)


def test_steps_and_ranks_are_folders(tmp_path: Path, tensors: dict[str, AnyArray]) -> None:
    for step in (0, 1):
        (tmp_path / f"step{step}").mkdir()
        write_npy(tmp_path / f"step{step}" / "rank3", tensors)
    parts = readers.find_parts(tmp_path, accept_tensors=True)
    assert [(part.step, part.rank) for part in parts] == [(0, 3), (1, 3)]


def test_it_is_no_dump_unless_a_person_says_so(
    tmp_path: Path, tensors: dict[str, AnyArray]
) -> None:
    folder = write_npy(tmp_path / "weights", tensors)
    with pytest.raises(DumpError, match="no dump in this folder"):
        readers.find_parts(folder)


def test_a_damaged_file_is_skipped_and_reported(
    tmp_path: Path, tensors: dict[str, AnyArray]
) -> None:
    folder = write_npy(tmp_path / "dump", tensors)
    (folder / "layer3.npy").write_bytes((folder / "layer3.npy").read_bytes()[:-8])
    with zipfile.ZipFile(folder / "code.pt", "w") as archive:
        archive.writestr("code/data.pkl", b"cos\nsystem\n(S'echo unpickled'\ntR.")
    trace = dumpdiff.read(folder)
    assert sorted(problem.file for problem in trace.problems) == ["code.pt", "layer3.npy"]
    assert len(trace.ops) == 11
