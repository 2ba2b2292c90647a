"""Output files: an input stays, an older file stays until the new one is complete."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.model.output_files import check_output_files, check_output_folder, open_output_file

OWN_DOCUMENT = b'{\n  "schema_version": "2.1",\n  "dumpdiff_version": "1.0"\n}\n'


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A folder that stands for a dump."""
    folder = tmp_path / "dump"
    (folder / "step0").mkdir(parents=True)
    (folder / "step0" / "dump.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["dump/step0/dump.json", "dump/new.json", "dump/../dump/new.json"])
def test_nothing_is_written_into_an_input(dump: Path, name: str) -> None:
    with pytest.raises(DumpError, match=r"lies inside the input .*dump; give another folder"):
        check_output_files([dump.parent / name], [dump], force=True)


def test_an_input_file_is_no_output(dump: Path) -> None:
    file = dump / "step0" / "dump.json"
    with pytest.raises(DumpError, match="is an input; give another name"):
        check_output_files([file], [file], force=True)


def test_a_link_to_an_input_is_no_output(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(dump / "step0" / "dump.json")
    with pytest.raises(DumpError, match="lies inside the input"):
        check_output_files([tmp_path / "link.json"], [dump], force=True)


def test_a_folder_of_results_lies_in_no_input(dump: Path) -> None:
    with pytest.raises(DumpError, match="lies inside the input"):
        check_output_folder(dump / "result", [dump])
    with pytest.raises(DumpError, match="is an input"):
        check_output_folder(dump, [dump])


def test_a_file_of_another_program_stays_unless_the_user_insists(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text('{"path": "/home/me/dumpdiff/dump"}')
    with pytest.raises(DumpError, match="give another name, or --force to replace it"):
        check_output_files([file], [])
    assert check_output_files([file], [], force=True) is None


@pytest.mark.parametrize("content", [b"", OWN_DOCUMENT])
def test_an_empty_file_and_an_older_document_are_replaced(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(content)
    assert check_output_files([file], []) is None


def test_two_names_of_one_file_are_one_output(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="two outputs cannot both be written to"):
        check_output_files([tmp_path / "x", tmp_path / "." / "x"], [])
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(DumpError, match="two outputs cannot both be written to"):
        check_output_files([tmp_path / "x", tmp_path / "link"], [])


def test_a_folder_is_no_file_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="is a folder; give the name of a file"):
        check_output_files([tmp_path], [])
    with pytest.raises(DumpError, match=r"result\.json: cannot be written, there is no folder"):
        check_output_files([tmp_path / "nowhere" / "result.json"], [])


def test_a_device_may_be_an_output() -> None:
    assert check_output_files(["/dev/null", "/dev/null"], []) is None
    with open_output_file("/dev/null") as stream:
        stream.write(b"x")


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with open_output_file(tmp_path / "written") as stream:
        stream.write(b"x")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_error_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(OWN_DOCUMENT)
    with pytest.raises(TypeError), open_output_file(file) as stream:
        stream.writelines([b"half", "text"])
    assert file.read_bytes() == OWN_DOCUMENT
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(OWN_DOCUMENT)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with (
            pytest.raises(DumpError, match=r"result\.json: cannot be written \(File too large\)"),
            open_output_file(file) as stream,
        ):
            stream.write(bytes(1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_bytes() == OWN_DOCUMENT
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_killed_process_leaves_the_older_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(OWN_DOCUMENT)
    program = (
        "import os, signal, sys\n"
        "from dumpdiff.model.output_files import open_output_file\n"
        "with open_output_file(sys.argv[1]) as stream:\n"
        "    stream.write(bytes(1 << 20))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", program, str(file)], check=False)
    assert outcome.returncode == -signal.SIGKILL
    assert file.read_bytes() == OWN_DOCUMENT


def test_a_folder_that_may_not_be_written_keeps_the_older_file() -> None:
    folder = Path(tempfile.mkdtemp())
    file = folder / "result.json"
    file.write_bytes(OWN_DOCUMENT)
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with (
            pytest.raises(DumpError, match=r"result\.json: cannot be written \(Permission denied"),
            open_output_file(file) as stream,
        ):
            stream.write(b"x")
    finally:
        os.seteuid(user)
    assert file.read_bytes() == OWN_DOCUMENT
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_that_the_umask_says(tmp_path: Path, umask: int) -> None:
    old_umask = os.umask(umask)
    try:
        with open_output_file(tmp_path / "written") as stream:
            stream.write(b"x")
    finally:
        os.umask(old_umask)
    assert (tmp_path / "written").stat().st_mode & 0o777 == 0o666 & ~umask
