"""Input files: only regular files are opened, and no folder is searched without an end."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dumpdiff.model import input_files
from dumpdiff.model.errors import DumpError
from dumpdiff.model.input_files import (
    iterate_folders,
    open_input_file,
    open_input_stream,
    read_head,
    read_input_bytes,
    read_input_text,
)


@pytest.fixture
def special_files(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A pipe, a socket, a device and a folder, by what they are called in messages."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
        yield {
            "pipe": tmp_path / "fifo",
            "socket": tmp_path / "sock",
            "device": Path("/dev/zero"),
            "folder": tmp_path,
        }


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_only_a_regular_file_is_opened(special_files: dict[str, Path], kind: str) -> None:
    path = special_files[kind]
    with pytest.raises(OSError, match=f"is a {kind}, not a file") as caught:
        open_input_file(path)
    assert caught.value.filename == str(path)
    assert read_head(path) == b""


def test_a_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_input_bytes(tmp_path / "link") == b"abc"


def test_a_file_of_the_kernel_without_a_size_is_empty() -> None:
    assert read_input_bytes("/proc/self/status") == b""


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    assert len(read_input_bytes(tmp_path / "file", 11)) == 11
    with pytest.raises(OSError, match="has more than 10 bytes") as caught:
        read_input_bytes(tmp_path / "file", 10)
    assert caught.value.errno == errno.EFBIG


def test_a_file_that_grows_while_it_is_read_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(10))
    real_fstat = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        status = real_fstat(descriptor)
        with file.open("ab") as stream:
            stream.write(bytes(10))
        return status

    monkeypatch.setattr(os, "fstat", grow)
    assert len(read_input_bytes(file, 25)) == 20  # it grows twice before it is read, and once more
    assert file.stat().st_size == 30


def test_line_ends_of_text_are_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\rc\xff")
    assert read_input_text(tmp_path / "file", errors="replace") == "a\nb\nc\ufffd"
    with pytest.raises(UnicodeDecodeError):
        read_input_text(tmp_path / "file")


def test_a_pipe_is_read_where_the_input_is_a_stream(tmp_path: Path) -> None:
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b"abc")
    os.close(writing_end)
    with open_input_stream(f"/dev/fd/{reading_end}") as stream:
        assert stream.read() == b"abc"
    os.close(reading_end)


def test_a_search_yields_regular_files_in_order(special_files: dict[str, Path]) -> None:
    root = special_files["folder"]
    for name in ("b/2", "b/1", "a/x/3"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "a" / "circle").symlink_to(root / "a" / "circle")
    (root / "a" / "up").symlink_to(root)
    entries = [(str(item.folder.relative_to(root)), item.files) for item in iterate_folders(root)]
    assert entries == [(".", []), ("a", []), ("a/x", ["3"]), ("b", ["1", "2"])]


def test_a_search_skips_the_folders_that_the_caller_removes(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    searched = []
    for item in iterate_folders(tmp_path):
        searched.append(item.folder)
        item.subfolders.clear()
    assert searched == [tmp_path]


def test_a_search_of_too_many_files_ends_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "_MAX_ENTRIES", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    with pytest.raises(DumpError, match="holds more than 3 files; give the folder of one dump"):
        list(iterate_folders(tmp_path))


def test_a_search_stays_on_its_file_system() -> None:
    errors: list[OSError] = []
    folders = [item.folder for item in _iterate_top(Path("/"), errors)]
    assert Path("/proc") not in folders
    assert "/proc" in {error.filename for error in errors if error.errno == errno.EXDEV}


def _iterate_top(root: Path, errors: list[OSError]) -> Iterator[input_files.FolderEntries]:
    for item in iterate_folders(root, errors.append):
        if item.folder != root:
            item.subfolders.clear()
        yield item
