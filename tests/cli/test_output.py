"""Output: '-' is standard output; what cannot be written is an error before the long work."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.cli import output
from dumpdiff.model.errors import DumpError


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    with (
        pytest.raises(
            DumpError, match=r"^/dev/full: cannot be written \(No space left on device\)$"
        ),
        output.open_output("/dev/full") as stream,
    ):
        stream.write(b"x")


def test_people_read_standard_error_when_a_format_takes_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.build_console("-", None).print("for people")
    output.build_console("result.json", None).print("answer")
    assert capsys.readouterr() == ("answer\n", "for people\n")


def test_no_terminal_no_wrapping_at_80(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.build_console().print("word " * 30)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_columns_sets_the_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    output.build_console().print("word " * 30)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.show_progress() as move:
        assert move is None
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with output.show_progress() as move:
        assert move is not None
        move("reading", 0.5)
    captured = capsys.readouterr()
    assert "reading" in captured.err
    assert captured.out == ""
