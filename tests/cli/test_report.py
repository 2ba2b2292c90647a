"""``dumpdiff report RESULT``: reports of a folder, or of JSON by repeating the comparison."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import MovedResult, Run

Dump = Callable[[str], Path]


@pytest.fixture
def result(run: Run, dump: Dump, tmp_path: Path) -> Path:
    file = tmp_path / "result.json"
    assert (
        run("align", dump("demo_mindspore"), dump("demo_pytorch"), "--json", file, "-q").exit_code
        == 1
    )
    return file


def test_every_form_at_once_and_the_answer(run: Run, result: Path, tmp_path: Path) -> None:
    page, comment, junit, pairs = (
        tmp_path / name for name in ("report.html", "comment.md", "dumpdiff.xml", "pairs.csv")
    )
    outcome = run(
        "report", result, "-o", page, "--markdown", comment, "--junit", junit, "--csv", pairs
    )
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("diverged: layers.1.post_attention_norm: epsilon, ")
    assert len(outcome.stdout.splitlines()) == 1
    assert "Add-op12" in page.read_text()
    assert comment.read_text().startswith("**First divergence:** `layers.1.post_attention_norm`")
    assert ElementTree.parse(junit).getroot().attrib["failures"] == "1"
    with pairs.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == sum(
            json.loads(result.read_text())["pairs"].values()
        )


def test_it_writes_what_align_writes(run: Run, dump: Dump, result: Path, tmp_path: Path) -> None:
    pair = dump("demo_mindspore"), dump("demo_pytorch")
    for option in ("--html", "--markdown", "--junit"):
        run("align", *pair, option, tmp_path / "direct", "-q")
        assert run("report", result, option, tmp_path / "repeated").exit_code == 0
        assert (tmp_path / "repeated").read_bytes() == (tmp_path / "direct").read_bytes()


def test_a_dash_is_standard_output(run: Run, result: Path) -> None:
    outcome = run("report", result, "--markdown", "-")
    assert outcome.stdout.startswith("**First divergence:**")
    assert outcome.stderr.startswith("diverged: ")


def test_what_the_verdict_depended_on_is_repeated_too(run: Run, dump: Dump, tmp_path: Path) -> None:
    pair = dump("ms_graph"), dump("v6.0_api_stack_summary")
    assert run("align", *pair, "--min-coverage", 1, "--json", tmp_path / "r.json").exit_code == 3
    assert run("report", tmp_path / "r.json", "--markdown", "-").stdout.startswith(
        "**Inconclusive:** only "
    )


def test_the_rules_it_was_made_with_are_repeated_too(run: Run, dump: Dump, tmp_path: Path) -> None:
    rules, result = tmp_path / "mine.yaml", tmp_path / "r.json"
    rules.write_text("scopes:\n  block:\n    modules:\n      second_norm: [post_norm]\n")
    pair = dump("demo_mindspore"), dump("demo_pytorch")
    run(
        "align",
        *pair,
        "--rules",
        rules,
        "--json",
        result,
        "--markdown",
        tmp_path / "direct.md",
        "-q",
    )
    run("report", result, "--markdown", tmp_path / "repeated.md")
    assert (tmp_path / "repeated.md").read_bytes() == (tmp_path / "direct.md").read_bytes()
    rules.unlink()
    outcome = run("report", result, "--markdown", "-")
    assert outcome.exit_code == 2
    assert "mine.yaml" in outcome.stderr


def test_nothing_to_write_is_wrong_usage(run: Run, result: Path) -> None:
    outcome = run("report", result)
    assert outcome.exit_code == 2
    assert "nothing to write: give -o, --markdown, --junit or --csv" in outcome.stderr


def test_two_forms_in_one_file_are_wrong_usage(run: Run, result: Path) -> None:
    assert run("report", result, "--markdown", "-", "--junit", "-").exit_code == 2


def test_a_file_that_cannot_be_written_is_an_error_before_the_work(
    run: Run, tmp_path: Path
) -> None:
    outcome = run("report", "no result at all", "--markdown", tmp_path / "missing" / "x.md")
    assert outcome.exit_code == 2
    assert "there is no folder" in outcome.stderr


def test_a_file_that_is_no_result_is_an_error_in_one_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    outcome = run("report", file, "--markdown", "-")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert "expected a result of dumpdiff align --json" in outcome.stderr


def test_a_folder_needs_no_dumps(run: Run, moved_result: MovedResult, tmp_path: Path) -> None:
    page, pairs = tmp_path / "report.html", tmp_path / "pairs.csv"
    outcome = run("report", moved_result.folder, "-o", page, "--csv", pairs, "--markdown", "-")
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("**First divergence:**")
    assert outcome.stderr.startswith("diverged: layers.1.post_attention_norm: epsilon, ")
    assert page.read_bytes() == (moved_result.folder / "report.html").read_bytes()
    assert pairs.read_bytes() == (moved_result.folder / "pairs.csv").read_bytes()


def test_the_json_of_a_folder_needs_the_dumps(
    run: Run, moved_result: MovedResult, tmp_path: Path
) -> None:
    file = moved_result.folder / "result.json"
    outcome = run("report", file, "--junit", tmp_path / "a.xml")
    assert outcome.exit_code == 2
    assert "the target dump is missing" in outcome.stderr
    dumps = ("--target", moved_result.target, "--reference", moved_result.reference)
    assert run("report", file, *dumps, "--junit", tmp_path / "a.xml").exit_code == 0
    run("report", moved_result.folder, "--junit", tmp_path / "b.xml")
    repeated, saved = (ElementTree.parse(tmp_path / name).getroot() for name in ("a.xml", "b.xml"))
    assert repeated.attrib == saved.attrib


def test_further_rules_repeat_the_comparison(
    run: Run, moved_result: MovedResult, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("scopes:\n  block:\n    modules:\n      second_norm: [post_norm]\n")
    options = ("--rules", rules, "--markdown", "-")
    outcome = run("report", moved_result.folder, *options)
    assert outcome.exit_code == 2
    assert "the target dump is missing" in outcome.stderr
    dumps = ("--target", moved_result.target, "--reference", moved_result.reference)
    assert run("report", moved_result.folder, *dumps, *options).exit_code == 0


def test_a_folder_without_a_result_is_an_error(run: Run, tmp_path: Path) -> None:
    outcome = run("report", tmp_path, "--markdown", "-")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "complete.npz: expected a complete result" in outcome.stderr
