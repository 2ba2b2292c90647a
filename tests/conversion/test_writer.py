"""Nothing is overwritten; an interrupted conversion is resumed with the same source and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.conversion import ParallelSizes, TargetOptions, torch_writer, writer
from dumpdiff.model.errors import DumpError

from .conftest import convert_folder

OPTIONS = TargetOptions("megatron", sizes=ParallelSizes(2, 2))


class Interrupted(Exception):
    """Simulates a power failure."""


@pytest.fixture
def interrupted(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a conversion of four ranks that was interrupted in the third."""
    write_file, n_calls = torch_writer.write_file, 0

    def fail_in_third_call(path: Path, *arguments: object) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            path.write_bytes(b"half of it")
            raise Interrupted
        write_file(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch_writer, "write_file", fail_in_third_call)
        with pytest.raises(Interrupted):
            convert_folder(models / "llama", tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_a_folder_in_use_is_refused(tmp_path: Path, models: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    for resume in (False, True):
        with pytest.raises(DumpError, match="give another folder"):
            convert_folder(models / "llama", tmp_path, OPTIONS, resume=resume)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_an_interrupted_conversion_is_refused_with_a_hint_to_resume(
    interrupted: Path, models: Path
) -> None:
    with pytest.raises(DumpError, match="--resume continues it"):
        convert_folder(models / "llama", interrupted, OPTIONS)


def test_an_interrupted_conversion_is_resumed(interrupted: Path, models: Path) -> None:
    modification_times = {file: file.stat().st_mtime_ns for file in interrupted.rglob("*.pt")}
    assert len(modification_times) == 2

    result = convert_folder(models / "llama", interrupted, OPTIONS, resume=True)

    assert result.verified
    assert result.n_reused_files == 2
    assert all(file.stat().st_mtime_ns == time for file, time in modification_times.items())
    assert len(list(interrupted.rglob("*.pt"))) == 4
    assert not list(interrupted.rglob("*.part"))
    assert not (interrupted / writer.JOURNAL).exists()


@pytest.mark.parametrize(
    "other_options",
    [TargetOptions("megatron", sizes=ParallelSizes(4, 2)), TargetOptions("huggingface")],
)
def test_another_conversion_does_not_resume_an_interrupted_one(
    interrupted: Path, models: Path, other_options: TargetOptions
) -> None:
    with pytest.raises(DumpError, match="of another source or with other options"):
        convert_folder(models / "llama", interrupted, other_options, resume=True)
    with pytest.raises(DumpError, match="of another source or with other options"):
        convert_folder(models / "qwen3", interrupted, OPTIONS, resume=True)


def test_verification_fails_if_other_bytes_were_written(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that changes one byte of a tensor is detected."""
    write_file = torch_writer.write_file

    def write_wrong_byte(path: Path, tensors: tuple, *arguments: object) -> None:
        write_file(path, tensors, *arguments)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)

    monkeypatch.setattr(torch_writer, "write_file", write_wrong_byte)
    result = convert_folder(models / "llama", tmp_path / "out", TargetOptions("megatron"))
    assert result.verified is False


def test_without_verification_nothing_is_compared(tmp_path: Path, models: Path) -> None:
    assert (
        convert_folder(models / "llama", tmp_path / "out", OPTIONS, verify=False).verified is None
    )


def test_a_requested_rounding_is_verified(tmp_path: Path, models: Path) -> None:
    result = convert_folder(
        models / "llama", tmp_path / "out", TargetOptions("mindspore", dtype="bfloat16")
    )
    assert result.verified
    assert result.verification is not None
    assert result.verification.relation == "rounded"
