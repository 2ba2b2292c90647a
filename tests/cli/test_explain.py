"""``dumpdiff explain RESULT``: its dumps are read again, and one finding is printed in full."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import MovedResult, Run


@pytest.fixture
def result(run: Run, dump: Callable[[str], Path], tmp_path: Path) -> Path:
    file = tmp_path / "result.json"
    assert (
        run("align", dump("demo_mindspore"), dump("demo_pytorch"), "--json", file, "-q").exit_code
        == 1
    )
    return file


def test_it_says_which_side_is_wrong_and_why(run: Run, result: Path, tmp_path: Path) -> None:
    outcome = run("explain", result, "--json", tmp_path / "why.json")
    assert outcome.exit_code == 0
    assert "behaves as epsilon = 0.01; the reference uses 1e-05; residual" in " ".join(
        outcome.stdout.split()
    )
    written = json.loads((tmp_path / "why.json").read_text())
    assert written["side"] == "target"
    assert written["causes"][0]["name"] == "epsilon"
    finding = json.loads(result.read_text())["first_divergence"]
    assert {key: written[key] for key in finding} == finding


def test_a_missing_finding_is_an_error(run: Run, result: Path) -> None:
    outcome = run("explain", result, "--finding", 99)
    assert outcome.exit_code == 2
    assert "has no finding 99; it has" in outcome.stderr


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"schema_version": "2.0"}', '{"schema_version": "1.1"}', "[" * 10**5],
)
def test_a_file_that_is_no_result_is_an_error_in_one_line(
    run: Run, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    outcome = run("explain", file)
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    assert "expected a result of dumpdiff align --json" in outcome.stderr


def test_dumps_that_are_gone_are_named(run: Run, result: Path) -> None:
    document = json.loads(result.read_text())
    document["target"]["path"] = "/nowhere/at/all"
    result.write_text(json.dumps(document))
    outcome = run("explain", result)
    assert outcome.exit_code == 2
    assert "/nowhere/at/all" in outcome.stderr


def test_a_finding_is_named_by_rank_or_id(run: Run, result: Path) -> None:
    document = json.loads(result.read_text())
    by_id = run("explain", result, "--finding", document["first_divergence"]["id"])
    by_rank = run("explain", result, "--finding", 1)
    assert (by_id.exit_code, by_id.stdout) == (0, by_rank.stdout)
    assert run("explain", result).stdout == by_rank.stdout


def test_moved_dumps_are_named(run: Run, moved_result: MovedResult, tmp_path: Path) -> None:
    dumps = ("--target", moved_result.target, "--reference", moved_result.reference)
    file = tmp_path / "why.json"
    options = ("--finding", moved_result.finding_id, "--json", file)
    outcome = run("explain", moved_result.folder, *dumps, *options)
    assert outcome.exit_code == 0
    assert json.loads(file.read_text())["causes"][0]["name"] == "epsilon"


def test_a_missing_dump_is_an_error_that_names_the_option(
    run: Run, moved_result: MovedResult
) -> None:
    folder = moved_result.folder
    outcome = run("explain", folder)
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "demo_mindspore" in outcome.stderr
    assert "the target dump is missing" in outcome.stderr
    assert "--target PATH" in outcome.stderr
    outcome = run("explain", folder, "--target", moved_result.target)
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "demo_pytorch" in outcome.stderr
    assert "the reference dump is missing" in outcome.stderr
    assert "--reference PATH" in outcome.stderr


def test_a_finding_that_other_dumps_do_not_have_is_an_error(
    run: Run, moved_result: MovedResult
) -> None:
    dump_without_it = moved_result.target
    dumps = ("--target", dump_without_it, "--reference", dump_without_it)
    outcome = run("explain", moved_result.folder, *dumps)
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert f"its dumps no longer give finding {moved_result.finding_id}" in outcome.stderr
