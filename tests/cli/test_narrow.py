"""``dumpdiff narrow RESULT``: two configurations, and the commands that use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import DumpError

from .conftest import MovedResult, Run


@pytest.fixture
def result(run: Run, dump: Callable[[str], Path], tmp_path: Path) -> Path:
    file = tmp_path / "result.json"
    assert (
        run("align", dump("demo_mindspore"), dump("demo_pytorch"), "--json", file, "-q").exit_code
        == 1
    )
    return file


def test_it_writes_configurations_and_says_how_to_use_them(
    run: Run, result: Path, tmp_path: Path
) -> None:
    outcome = run("narrow", result, "-o", tmp_path / "next", "--ops", 8)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0] == "next: whole tensors around"
    assert lines[1].startswith("  1  layers.1.post_attention_norm, add ")
    assert any(line.startswith("target: 8 ops, ") for line in lines)
    assert f'    eval "$(dumpdiff env {tmp_path}/next/target_dump.json)"' in lines
    assert lines[-1] == f"    dumpdiff explain {tmp_path}/next_result"
    kernels = json.loads((tmp_path / "next" / "target_dump.json").read_text())[
        "common_dump_settings"
    ]["kernels"]
    names = json.loads((tmp_path / "next" / "reference_config.json").read_text())["tensor"]["list"]
    assert (len(kernels), len(names)) == (8, 8)


def test_the_folder_may_be_given_by_way_of_its_parent(
    run: Run, result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore allows no dot in the path of a dump."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    outcome = run("narrow", result, "-o", "../next", "--ops", 8)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    written = json.loads((tmp_path / "next" / "target_dump.json").read_text())
    assert written["common_dump_settings"]["path"] == f"{tmp_path}/next/target"


def test_a_missing_finding_is_an_error(run: Run, result: Path, tmp_path: Path) -> None:
    outcome = run("narrow", result, "--finding", 9, "-o", tmp_path / "next")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "has no finding 9; it has 1" in outcome.stderr
    assert not (tmp_path / "next").exists()


def test_a_comparison_without_findings_leaves_nothing_to_dump(
    run: Run, dump: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    assert (
        run("align", dump("demo_pytorch"), dump("demo_pytorch"), "--json", file, "-q").exit_code
        == 0
    )
    outcome = run("narrow", file, "-o", tmp_path / "next")
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        "dumpdiff: nothing to record: the comparison has no findings\n",
    )


def test_moved_dumps_and_the_id_of_a_finding(
    run: Run, moved_result: MovedResult, tmp_path: Path
) -> None:
    dumps = ("--target", moved_result.target, "--reference", moved_result.reference)
    options = ("--finding", moved_result.finding_id, "-o", tmp_path / "next")
    outcome = run("narrow", moved_result.folder, *dumps, *options)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[1].startswith("  1  layers.1.post_attention_norm, add ")
    assert (tmp_path / "next" / "target_dump.json").is_file()


def test_a_finding_that_other_dumps_do_not_have_is_an_error(
    run: Run, moved_result: MovedResult, tmp_path: Path
) -> None:
    dump_without_it = moved_result.target
    dumps = ("--target", dump_without_it, "--reference", dump_without_it)
    options = ("--finding", moved_result.finding_id, "-o", tmp_path / "next")
    outcome = run("narrow", moved_result.folder, *dumps, *options)
    assert outcome.exit_code == 2
    assert f"its dumps no longer give finding {moved_result.finding_id}" in outcome.stderr
    assert not (tmp_path / "next").exists()


def test_a_file_in_place_of_the_folder_is_an_error_before_the_work(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "next").touch()
    outcome = run("narrow", "no result at all", "-o", tmp_path / "next")
    assert outcome.exit_code == 2
    assert outcome.stderr == f"dumpdiff: {tmp_path / 'next'}: is a file; give a folder to write\n"


def test_a_recorder_that_cannot_be_asked_for_single_ops_is_named(
    dump: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = dump("torchtitan")
    dumpdiff.align(folder / "fault", folder / "clean", output=tmp_path / "result")
    with pytest.raises(DumpError, match="the target is a dump of the format torchtitan"):
        dumpdiff.narrow(tmp_path / "result", tmp_path / "next")
