"""Writing: nothing is overwritten, an interrupted conversion goes on, and only with what it was begun with."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.conversion import TargetOptions, torch_writer, writer
from dumpdiff.model.errors import DumpError

from .conftest import converted

WANTED = TargetOptions("megatron", tensor=2, stages=2)


class Interrupted(Exception):
    """Stands for the power going off."""


@pytest.fixture
def interrupted(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversion of four ranks that ended in the third."""
    real, begun = torch_writer.write_file, 0

    def fails(path: Path, *arguments: object) -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            path.write_bytes(b"half of it")
            raise Interrupted
        real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch_writer, "write_file", fails)
        with pytest.raises(Interrupted):
            converted(models / "llama", tmp_path / "out", WANTED)
    return tmp_path / "out"


def test_a_folder_in_use_is_refused(tmp_path: Path, models: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    for resume in (False, True):
        with pytest.raises(DumpError, match="give another folder"):
            converted(models / "llama", tmp_path, WANTED, resume=resume)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_interrupted_one_is_refused_too_and_says_how_to_go_on(
    interrupted: Path, models: Path
) -> None:
    with pytest.raises(DumpError, match="--resume goes on with it"):
        converted(models / "llama", interrupted, WANTED)


def test_an_interrupted_one_goes_on(interrupted: Path, models: Path) -> None:
    whole = {file: file.stat().st_mtime_ns for file in interrupted.rglob("*.pt")}
    assert len(whole) == 2

    result = converted(models / "llama", interrupted, WANTED, resume=True)

    assert result.verified
    assert result.n_reused_files == 2
    assert all(file.stat().st_mtime_ns == time for file, time in whole.items())
    assert len(list(interrupted.rglob("*.pt"))) == 4
    assert not list(interrupted.rglob("*.part"))
    assert not (interrupted / writer.JOURNAL).exists()


@pytest.mark.parametrize("other", [TargetOptions("megatron", tensor=4, stages=2), TargetOptions("huggingface")])
def test_another_conversion_does_not_go_on(interrupted: Path, models: Path, other: TargetOptions) -> None:
    with pytest.raises(DumpError, match="of another source or with other options"):
        converted(models / "llama", interrupted, other, resume=True)
    with pytest.raises(DumpError, match="of another source or with other options"):
        converted(models / "qwen3", interrupted, WANTED, resume=True)


def test_verification_tells_what_is_wrong(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that puts other bytes into one tensor is found out."""
    real = torch_writer.write_file

    def wrong(path: Path, tensors: tuple, *arguments: object) -> None:
        real(path, tensors, *arguments)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)

    monkeypatch.setattr(torch_writer, "write_file", wrong)
    result = converted(models / "llama", tmp_path / "out", TargetOptions("megatron"))
    assert result.verified is False


def test_without_verification_nothing_is_compared(tmp_path: Path, models: Path) -> None:
    assert converted(models / "llama", tmp_path / "out", WANTED, verify=False).verified is None


def test_rounding_is_asked_for(tmp_path: Path, models: Path) -> None:
    result = converted(models / "llama", tmp_path / "out", TargetOptions("mindspore", dtype="bfloat16"))
    assert result.verified
    assert result.verification is not None
    assert result.verification.relation == "rounded"
