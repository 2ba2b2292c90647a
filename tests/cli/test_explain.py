"""``dumpdiff explain RESULT``: the dumps named there are read again, and one finding is told in full."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run


@pytest.fixture
def result(run: Run, dump: Callable[[str], Path], tmp_path: Path) -> Path:
    file = tmp_path / "result.json"
    assert (
        run("align", dump("demo_mindspore"), dump("demo_pytorch"), "--json", file, "-q").exit_code
        == 1
    )
    return file


def test_it_says_which_side_departs_and_why(run: Run, result: Path, tmp_path: Path) -> None:
    told = run("explain", result, "--json", tmp_path / "why.json")
    assert told.exit_code == 0
    assert "behaves as epsilon = 0.01; the reference uses 1e-05; residual" in " ".join(
        told.stdout.split()
    )
    written = json.loads((tmp_path / "why.json").read_text())
    assert written["side"] == "target"
    assert written["causes"][0]["name"] == "epsilon"
    assert written == json.loads(result.read_text())["first_divergence"]


def test_a_finding_that_is_not_there_is_wrong_usage(run: Run, result: Path) -> None:
    told = run("explain", result, "--finding", 99)
    assert told.exit_code == 2
    assert "has no finding 99; it has" in told.stderr


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"schema_version": "2.0"}', '{"schema_version": "1.1"}', "[" * 10**5],
)
def test_what_is_no_result_is_said_in_one_line(run: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    told = run("explain", file)
    assert told.exit_code == 2
    assert told.stderr.count("\n") == 1
    assert "expected a result of dumpdiff align --json" in told.stderr


def test_dumps_that_are_gone_are_named(run: Run, result: Path) -> None:
    document = json.loads(result.read_text())
    document["target"]["path"] = "/nowhere/at/all"
    result.write_text(json.dumps(document))
    told = run("explain", result)
    assert told.exit_code == 2
    assert "/nowhere/at/all" in told.stderr
