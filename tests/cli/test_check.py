"""``dumpdiff check`` as a user runs it."""

# ruff: noqa: RUF001 - Chinese punctuation

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from schemas import check

from .conftest import Run

Dump = Callable[[str], Path]
PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
((NAME, EXAMPLE),) = re.findall(r"<!-- example: (\S+) -->\n```\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("parallel_pt_tp2_dp2", 0, "check agree: no contradiction in "),
        ("parallel_pt_tp2_not_reduced", 1, "check differ: replicated: ranks 0, 1 (tp 0,1), step 0"),
        ("parallel_pt_tp1", 0, "check agree: no contradiction in "),
    ],
)
def test_the_first_line_is_the_answer_and_the_exit_code(
    run: Run, dump: Dump, name: str, code: int, line: str
) -> None:
    result = run("check", dump(name), "-q")
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)
    assert result.stdout.startswith(line)


def test_the_example_of_the_page_is_what_the_command_prints(run: Run, dump: Dump) -> None:
    assert run("check", dump(NAME)).stdout.startswith(EXAMPLE)


def test_the_answer_in_chinese_has_the_same_facts(run: Run, dump: Dump, tmp_path: Path) -> None:
    """Only names of the dump and words of the field stay; JSON and exit code are the English."""
    folder, documents, printed = dump("parallel_pt_tp2_not_reduced"), [], ""
    for language in ("en", "zh"):
        file = tmp_path / f"{language}.json"
        result = run("check", folder, "--lang", language, "--json", file)
        assert result.exit_code == 1
        documents.append(json.loads(file.read_text(encoding="utf-8")))
        printed = result.stdout
    assert documents[0] == documents[1]
    assert printed.startswith("检查不一致：副本相等：rank 0, 1（tp 0,1），step 0：")
    sentences = printed[printed.index("\n矛盾\n") :]
    words = set(re.findall(r"(?<![\w.])[a-z]{3,}(?![\w.:])", sentences))
    assert words <= {"rank", "step", "dtype", "loss", "input", "output"}


def test_ranks_that_exchange_nothing_are_inconclusive(run: Run, dump: Dump) -> None:
    """Ranks 0 and 3 are together in the group of all ranks only, of which two were not read."""
    result = run("check", dump("collectives"), "--ranks", "0,3", "-q")
    assert result.exit_code == 3
    assert "nothing could be compared between ranks" in result.stdout


def test_what_was_not_read_is_said(run: Run, dump: Dump) -> None:
    result = run("check", dump("parallel_pt_tp2_dp2"), "--ranks", "0,1")
    assert result.exit_code == 0
    assert "all_reduce of group 0,2: no dump of 2" in result.stdout
    assert "2 other steps, ranks or graphs were not read" in result.stdout


def test_a_rank_that_does_not_exist_is_wrong_input(run: Run, dump: Dump) -> None:
    result = run("check", dump("parallel_pt_tp2"), "--ranks", "7")
    assert result.exit_code == 2
    assert "no such step or rank; the dump holds: " in result.stderr


def test_json_markdown_and_junit(run: Run, dump: Dump, tmp_path: Path) -> None:
    files = {name: tmp_path / f"check.{name}" for name in ("json", "markdown", "junit")}
    options = [item for name, file in files.items() for item in (f"--{name}", file)]
    run("check", dump("parallel_pt_tp2_not_reduced"), "-q", *options)
    document = json.loads(files["json"].read_text())
    check(document, "check")
    first = document["violations"][0]
    assert (first["invariant"], first["ranks"], first["group"]) == (
        "replicated", [0, 1], "tp 0,1",
    )  # fmt: skip
    assert first["scope"] == "decoder.layers.0.mlp.linear_fc2"
    assert document["dump"]["ranks"] == [0, 1]
    assert "`decoder.layers.0.mlp.linear_fc2`" in files["markdown"].read_text()
    suite = ET.parse(files["junit"]).getroot()[0]
    failures = {case.get("name") for case in suite if case.find("failure") is not None}
    assert "a value that is replicated is equal on the ranks of the group" in failures
