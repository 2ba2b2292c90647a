"""``dumpdiff verify`` and ``dumpdiff align --verify`` as a user runs them."""

# ruff: noqa: RUF001 - Chinese punctuation

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from schemas import check
from verification.damage import change_npy, find_file, link_dump, replace_bytes

from .conftest import Run

Dump = Callable[[str], Path]
LINEAR = "Functional.linear.4.forward"


@pytest.fixture
def damaged(dump: Dump, tmp_path: Path) -> Path:
    """A dump in which one file that no comparison needs is changed."""
    copy = link_dump(dump("demo_pytorch"), tmp_path)
    folder = next(copy.rglob("dump_tensor_data"))
    weight = folder / "Module.model.layers.0.mlp.gate_proj.Linear.forward.0.input.0.pt"
    other = folder / "Module.model.layers.1.mlp.gate_proj.Linear.forward.0.input.0.pt"
    replace_bytes(weight, other.read_bytes())
    return copy


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        (
            "demo_mindspore",
            0,
            "verify agree: no contradiction in ",
        ),
        (
            "v2.0_corrupt_2proc",
            1,
            "verify differ: 5 records contradict another record or its file; 892 records damaged",
        ),
        ("pt_none", 3, "verify inconclusive: no contradiction in "),
    ],
)
def test_the_first_line_is_the_answer_and_the_exit_code(
    run: Run, dump: Dump, name: str, code: int, line: str
) -> None:
    result = run("verify", dump(name), "-q")
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)
    assert result.stdout.startswith(line)


def test_a_contradiction_is_printed_with_both_sides_and_its_file(run: Run, damaged: Path) -> None:
    result = run("verify", damaged)
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "verify differ: 1 record contradicts another record or its file"
    )
    for text in ("statistics of files", "Module.model.layers.0.mlp.gate_proj", "the file has max"):
        assert text in result.stdout


def test_the_json_follows_the_schema(run: Run, damaged: Path, tmp_path: Path) -> None:
    file = tmp_path / "verification.json"
    run("verify", damaged, "-q", "--json", file)
    document = json.loads(file.read_text())
    check(document, "verify")
    (item,) = document["contradictions"]
    assert (item["kind"], item["slot"]) == ("statistics", "input.0")
    assert document["dump"]["files_read"] == document["dump"]["files_total"] == 786
    counts = {entry["name"]: entry["contradictions"] for entry in document["checks"]}
    assert counts["statistics of files"] == 1


def test_the_limit_counts_what_is_not_printed(run: Run, dump: Dump, tmp_path: Path) -> None:
    copy = link_dump(dump("v6.0_api_stack"), tmp_path)
    for slot in ("input.0", "input.1", "output.0"):
        change_npy(find_file(copy, LINEAR, slot), np.zeros_like)
    printed = run("verify", copy, "--limit", 1).stdout
    assert printed.count("the file has max 0") == 1
    assert "... 2 more, --limit 3 shows them" in printed


class TestAlign:
    def test_what_was_read_is_said_and_verify_reads_all(
        self, run: Run, dump: Dump, damaged: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "result.json"
        sides = (damaged, dump("demo_pytorch"))
        plain = run("align", *sides, "--json", file)
        side = json.loads(file.read_text())["target"]
        assert 300 < side["files_read"] < side["files_total"] == 786
        assert f"{side['files_read']} of 786 files read (--verify reads all)" in plain.stdout
        assert "in doubt" not in plain.stdout

        verified = run("align", *sides, "--verify", "-q", "--json", file)
        document = json.loads(file.read_text())
        assert document["target"]["files_read"] == 786
        (problem,) = [problem for problem in document["problems"] if problem["weakens"]]
        assert problem["op"] == "Module.model.layers.0.mlp.gate_proj.Linear.forward.0"
        assert problem["side"] == "target"
        assert verified.stdout.startswith("aligned, in doubt: ")
        assert "1 problem\n" in verified.stdout
        assert "aligned, but in doubt: a record of the target cannot be relied on" in " ".join(
            run("align", *sides, "--verify").stdout.split()
        )

    def test_a_truncated_file_that_is_not_read_is_found_by_its_length(
        self, run: Run, dump: Dump, tmp_path: Path
    ) -> None:
        copy = link_dump(dump("demo_pytorch"), tmp_path)
        name = "Module.model.layers.0.mlp.gate_proj.Linear.forward.0.input.0.pt"
        file = next(copy.rglob(name))
        replace_bytes(file, file.read_bytes()[:1000])
        result = run("align", copy, dump("demo_pytorch"))
        assert result.stdout.startswith("aligned, in doubt: ")
        assert "\naligned, but in doubt: a record of the target" in result.stdout
        assert "the file is cut short, 1,000 bytes" in result.stdout

    def test_a_dump_of_two_processes_is_inconclusive_with_the_next_command(
        self, run: Run, dump: Dump
    ) -> None:
        result = run("align", dump("v2.0_corrupt_2proc"), dump("v1.0_api_stack"))
        assert result.exit_code == 3
        assert result.stdout.startswith("inconclusive: 897 records of the target")
        answer = " ".join(result.stdout.split())
        assert "several processes wrote this dump" in answer
        assert "run dumpdiff verify" in answer

    def test_a_dump_compared_with_itself_says_nothing(self, run: Run, dump: Dump) -> None:
        result = run("align", dump("pt_none"), dump("pt_none"), "--baseline", dump("pt_none"))
        assert "target and reference are the same dump" in result.stdout
        assert "the baseline has the same numbers as the reference" in result.stdout

    def test_other_steps_are_not_read_and_that_is_said(
        self, run: Run, dump: Dump, tmp_path: Path
    ) -> None:
        link_dump(dump("pt_gpt2"), tmp_path / "runs")
        (step,) = (tmp_path / "runs").rglob("step0")
        link_dump(step, step.parent / "copy").rename(step.parent / "step1")
        (step.parent / "copy").rmdir()
        result = run("align", tmp_path / "runs", dump("pt_gpt2"))
        assert "of the target, step 0 of 2 was compared; the rest was not read" in result.stdout
        assert "every recorded number of the two dumps is identical" in result.stdout


def test_contradictions_are_chinese_and_names_are_not(run: Run, damaged: Path) -> None:
    result = run("verify", damaged, "--lang", "zh")
    assert result.stdout.startswith("自检不一致：")
    contradictions = result.stdout[result.stdout.index("\n矛盾\n") :].splitlines()
    name = "Module.model.layers.0.mlp.gate_proj.Linear.forward.0 input.0"
    assert any(
        line.startswith(f"  统计量：{name}：最大值 ") and "但是：文件为最大值 " in line
        for line in contradictions
    )
