"""Faults of the machine: files that vanish, disk errors, no HOME, no locale, little memory."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.model import input_files

from .conftest import Run

Dump = Callable[[str], Path]
COMMAND = [sys.executable, "-m", "dumpdiff"]
ERRORS = {
    errno.ENOENT: "No such file or directory",
    errno.EIO: "Input/output error",
    errno.EACCES: "Permission denied",
}


@pytest.fixture(params=ERRORS, ids=["vanished", "disk error", "no permission"])
def break_file(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], str]:
    """``break_file(path)``: the file is listed, but opening it fails; returns the reason."""

    def break_opening(path: Path) -> str:
        open_descriptor = input_files._open_descriptor

        def fail(name: str | Path) -> tuple[int, int]:
            if Path(name).resolve() == path.resolve():
                raise OSError(request.param, ERRORS[request.param], str(name))
            return open_descriptor(name)

        monkeypatch.setattr(input_files, "_open_descriptor", fail)
        return ERRORS[request.param]

    return break_opening


def test_one_tensor_of_a_dump_that_cannot_be_read_is_a_problem(
    run: Run, dump: Dump, break_file: Callable[[Path], str]
) -> None:
    folder = dump("demo_mindspore")
    file = sorted(folder.rglob("MatMul*.npy"))[0]
    reason = break_file(file)
    outcome = run("inspect", folder, "--json", "-")
    assert outcome.exit_code == 0
    assert reason in outcome.stdout
    assert file.name in outcome.stdout


def test_the_index_of_a_dump_that_cannot_be_read_is_named(
    run: Run, dump: Dump, break_file: Callable[[Path], str]
) -> None:
    (file,) = dump("pt_gpt2").rglob("dump.json")
    reason = break_file(file)
    outcome = run("inspect", dump("pt_gpt2"))
    assert outcome.exit_code == 2
    assert f"{file}: {reason}" in outcome.stderr


def test_the_answer_needs_no_home_and_no_locale(run: Run, dump: Dump) -> None:
    arguments = ["align", str(dump("pt_gpt2")), str(dump("pt_gpt2_no_bias")), "--markdown", "-"]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0"}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    outcome = subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, check=False
    )
    expected = run(*arguments)
    assert outcome.returncode == expected.exit_code
    assert outcome.stdout.decode("utf-8") == expected.stdout


@pytest.fixture
def large_dump(tmp_path: Path) -> Path:
    """A dump with 2 GiB of tensors, in two files that take no space on the disk."""
    folder = tmp_path / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    header = np.lib.format.header_data_from_array_1_0(np.empty((1, 1), np.float32))
    header["shape"] = (1 << 14, 1 << 14)
    for number in range(2):
        name = f"Add.Default_Add-op{number}.0.0.{1795208090162012 + number}.output.0"
        file = folder / f"{name}.DefaultFormat.Float32.npy"
        with file.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            stream.truncate(stream.tell() + 4 * (1 << 28))
    return tmp_path


def test_a_dump_needs_less_memory_than_it_has_bytes(large_dump: Path) -> None:
    limit = "import resource, sys; from dumpdiff.cli import run; "
    limit += "resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)); run()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    outcome = subprocess.run(
        [sys.executable, "-c", limit, "verify", str(large_dump)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.stderr == ""
    assert outcome.returncode == 0


def test_one_file_of_a_thousand_without_permission_costs_one_record(
    run: Run, dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sorted(dump("demo_mindspore").rglob("MatMul*.npy"))[0]
    folder = tmp_path / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    for number in range(1000):
        name = f"Add.Default_Add-op{number}.0.0.{1795208090162012 + number}.output.0"
        shutil.copy(source, folder / f"{name}.DefaultFormat.Float32.npy")
    broken_name = sorted(os.listdir(folder))[500]
    open_descriptor = input_files._open_descriptor

    def fail(name: str | Path) -> tuple[int, int]:
        if Path(name).name == broken_name:
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return open_descriptor(name)

    monkeypatch.setattr(input_files, "_open_descriptor", fail)
    outcome = run("inspect", tmp_path)
    assert outcome.exit_code == 0
    assert "999" in outcome.stdout
    assert "Permission denied" in outcome.stdout
