"""Inputs that are no regular files, or that this user may not read: refused by name, at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import Run

NOBODY = 65534


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "{x}"),
        ("verify", "{x}"),
        ("align", "{x}", "{x}"),
        ("check", "{x}"),
        ("explain", "{x}"),
        ("report", "{x}", "--markdown", "-"),
        ("narrow", "{x}"),
        ("mapping", "{x}", "--for", "msprobe"),
        ("rules", "check", "{x}"),
        ("env", "{x}"),
        ("dump-config", "check", "{x}"),
        ("settings", "{x}", "{x}"),
        ("checklist", "{x}", "{x}"),
        ("data", "{x}", "{x}"),
        ("norms", "{x}", "{x}"),
        ("weights", "{x}", "{x}"),
        ("triage", "{x}"),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_input(
    run: Run, tmp_path: Path, command: tuple[str, ...], kind: str
) -> None:
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "fifo"
        os.mkfifo(path)
    outcome = run(*[word.format(x=path) for word in command])
    assert outcome.exit_code == 2
    assert f"is a {kind}, not a file" in outcome.stderr


def test_a_pipe_in_a_folder_is_left_out(
    run: Run, dump: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(dump("pt_gpt2"), tmp_path / "dump")
    for name in ("dump.json", "stack.json", "x.pkl", "train.log"):
        os.mkfifo(folder / name)
    outcome = run("inspect", folder)
    assert (outcome.exit_code, outcome.stderr) == (0, "")


def test_logs_reads_a_pipe(run: Run) -> None:
    samples = Path(__file__).parents[1] / "samples" / "logs"
    log = next(path for path in sorted(samples.iterdir()) if path.suffix == ".log")
    reading_end, writing_end = os.pipe()
    os.write(writing_end, log.read_bytes())
    os.close(writing_end)
    outcome = run("logs", f"/dev/fd/{reading_end}", log)
    os.close(reading_end)
    assert outcome.exit_code == run("logs", log, log).exit_code
    assert outcome.stderr == ""


@contextmanager
def be_nobody() -> Iterator[None]:
    """Run as a user who owns nothing, if this is root: root may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def own_dump(run: Run, dump: Callable[[str], Path]) -> Iterator[Path]:
    """A copy of a dump in a folder that everybody may enter; the command has run once."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    folder = shutil.copytree(dump("pt_gpt2"), root / "dump")
    assert run("inspect", folder).exit_code == 0
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(root)


@pytest.mark.parametrize("mode", [0o700, 0o744])
def test_a_folder_that_may_not_be_searched_is_named(run: Run, own_dump: Path, mode: int) -> None:
    """MindSpore makes folders of mode 0744, in which nobody else may open a file."""
    (subfolder, *_) = (path for path in sorted(own_dump.rglob("*")) if path.is_dir())
    subfolder.chmod(mode)
    if os.geteuid() != 0:
        subfolder.chmod(mode & 0o400)
    with be_nobody():
        outcome = run("inspect", own_dump)
    assert outcome.exit_code == 2
    assert f"{subfolder}" in outcome.stderr
    assert "Permission denied" in outcome.stderr


def test_a_file_that_may_not_be_read_says_why(run: Run, own_dump: Path) -> None:
    (file,) = own_dump.rglob("dump.json")
    file.chmod(0o200)
    with be_nobody():
        outcomes = [run("inspect", path) for path in (own_dump, file)]
    for outcome in outcomes:
        assert outcome.exit_code == 2
        assert f"{file}" in outcome.stderr
        assert "Permission denied" in outcome.stderr


def test_a_dump_is_no_checkpoint(run: Run, dump: Callable[[str], Path]) -> None:
    for name in ("pt_gpt2", "ms_gpt2"):
        outcome = run("weights", dump(name), dump(name))
        assert outcome.exit_code == 2
        assert "is a dump, not a checkpoint; compare dumps with dumpdiff align" in outcome.stderr
