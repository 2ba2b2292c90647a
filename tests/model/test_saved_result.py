"""The JSON of an earlier comparison: which dumps, which part, which findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from results import make_result

from dumpdiff.model.errors import DumpError
from dumpdiff.model.result import Result
from dumpdiff.model.saved_result import read_saved_result
from dumpdiff.reports.alignment.json import to_json


def save(result: Result, folder: Path, **changes: Any) -> Path:
    file = folder / "result.json"
    file.write_text(json.dumps({**to_json(result), **changes}))
    return file


def test_it_knows_what_was_compared(tmp_path: Path) -> None:
    saved = read_saved_result(save(make_result(), tmp_path))
    assert (saved.target, saved.reference) == ("/data/ms_dump", "/data/pt_dump")
    assert (saved.step, saved.graph, saved.min_coverage) == (0, 0, 0.5)
    assert saved.rank is None  # 0 on one side, unknown on the other: the paths name the parts
    assert saved.baseline is None
    assert saved.rules == ()


def test_a_finding_is_named_by_rank_or_id(tmp_path: Path) -> None:
    result = make_result()
    saved = read_saved_result(save(result, tmp_path))
    first, second = (finding.id for finding in result.findings)
    assert [saved.find_id(1), saved.find_id("2"), saved.find_id(first)] == [first, second, first]


@pytest.mark.parametrize("finding", [0, 3, -1, "", "first", "²", "1.0"])
def test_a_finding_that_it_does_not_have_is_an_error(tmp_path: Path, finding: int | str) -> None:
    saved = read_saved_result(save(make_result(), tmp_path))
    with pytest.raises(DumpError, match=r"has no finding .*; it has 2"):
        saved.find_id(finding)


def test_an_id_of_digits_only_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    saved = replace(read_saved_result(save(make_result(), tmp_path)), finding_ids=("00000002", "a"))
    assert saved.find_id("00000002") == "00000002"
    assert saved.find_id(2) == "a"


def test_another_major_version_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    file = save(make_result(), tmp_path, schema_version="1.4")
    with pytest.raises(DumpError, match=r"found 1\.4: run dumpdiff align again"):
        read_saved_result(file)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"none\.json: expected a result of .* no such"):
        read_saved_result(tmp_path / "none.json")
