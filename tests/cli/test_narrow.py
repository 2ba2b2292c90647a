"""``dumpdiff narrow RESULT``: two configurations in a folder, and the commands that use them on standard output."""

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


def test_it_writes_configurations_and_says_how_to_use_them(
    run: Run, result: Path, tmp_path: Path
) -> None:
    told = run("narrow", result, "-o", tmp_path / "next", "--ops", 8)
    assert (told.exit_code, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    assert lines[0] == "next: whole tensors around"
    assert lines[1].startswith("  1  layers.1.post_attention_norm, add ")
    assert any(line.startswith("target: 8 ops, ") for line in lines)
    assert f'    eval "$(dumpdiff env {tmp_path}/next/target_dump.json)"' in lines
    assert lines[-1] == f"    dumpdiff explain {tmp_path}/next/result.json"
    kernels = json.loads((tmp_path / "next" / "target_dump.json").read_text())[
        "common_dump_settings"
    ]["kernels"]
    names = json.loads((tmp_path / "next" / "reference_config.json").read_text())["tensor"]["list"]
    assert (len(kernels), len(names)) == (8, 8)


def test_a_finding_that_is_not_there_is_wrong_usage(run: Run, result: Path, tmp_path: Path) -> None:
    told = run("narrow", result, "--finding", 9, "-o", tmp_path / "next")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "has no finding 9; it has 1" in told.stderr
    assert not (tmp_path / "next").exists()


def test_a_comparison_without_findings_leaves_nothing_to_dump(
    run: Run, dump: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    assert (
        run("align", dump("demo_pytorch"), dump("demo_pytorch"), "--json", file, "-q").exit_code
        == 0
    )
    told = run("narrow", file, "-o", tmp_path / "next")
    assert (told.exit_code, told.stderr) == (
        2,
        "dumpdiff: no finding to look at more closely: the comparison has none\n",
    )
