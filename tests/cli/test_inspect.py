"""``dumpdiff inspect``: what a real dump is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from .conftest import Run

Dump = Callable[[str], Path]


def inspect_dump(run: Run, path: Path, *options: str) -> dict:
    result = run("inspect", path, "--json", "-", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "framework", "format", "phases", "ops", "tensors", "whole_tensors"),
    [
        ("ms_graph", "mindspore", "mindspore", {"forward", "backward"}, 753, 2641, 2471),
        ("v6.0_api_stack", "pytorch", "ptdbg", {"forward", "backward"}, 379, 1004, 1004),
        ("v6.0_api_stack_summary", "pytorch", "ptdbg", {"forward", "backward"}, 379, 1004, 0),
        ("pt_none", "pytorch", "msprobe", {"forward", "backward", "optimizer"}, 351, 958, 0),
    ],
)
def test_what_a_dump_holds(
    run: Run,
    dump: Dump,
    name: str,
    framework: str,
    format: str,
    phases: set[str],
    ops: int,
    tensors: int,
    whole_tensors: int,
) -> None:
    read = inspect_dump(run, dump(name))["read"]
    assert (read["framework"], read["format"]) == (framework, format)
    assert {phase for phase, count in read["ops"].items() if count} == phases
    assert (sum(read["ops"].values()), read["tensors"], read["whole_tensors"]) == (
        ops,
        tensors,
        whole_tensors,
    )
    assert read["problems"] == []


def test_bytes_are_those_of_all_files(run: Run, dump: Dump) -> None:
    folder = dump("v6.0_api_stack_summary")
    assert inspect_dump(run, folder)["bytes"] == sum(
        f.stat().st_size for f in folder.rglob("*") if f.is_file()
    )


def test_verified_edges_are_counted(run: Run, dump: Dump) -> None:
    assert "edges verified  962 of 962" in run("inspect", dump("ms_graph")).stdout


def test_the_first_line_says_what_it_is(run: Run, dump: Dump) -> None:
    first = run("inspect", dump("v6.0_api_stack")).stdout.splitlines()[0]
    assert first.startswith("pytorch, ptdbg, 6.0 ")


def test_json_on_standard_output_moves_the_text_to_standard_error(run: Run, dump: Dump) -> None:
    result = run("inspect", dump("pt_none"), "--json", "-")
    assert json.loads(result.stdout)["schema_version"] == "2.1"
    assert result.stderr.startswith("pytorch, msprobe")


def test_json_into_a_file(run: Run, dump: Dump, tmp_path: Path) -> None:
    result = run("inspect", dump("pt_none"), "--json", tmp_path / "it.json")
    assert result.stdout.startswith("pytorch, msprobe")
    assert json.loads((tmp_path / "it.json").read_text())["steps"] == [0]


def test_several_parts_are_listed_and_one_is_read(run: Run, dump: Dump, tmp_path: Path) -> None:
    for step in (0, 1):
        copytree(dump("pt_none") / "statistics_mix" / "step0", tmp_path / f"step{step}")
    document = inspect_dump(run, tmp_path, "--step", "1")
    assert document["steps"] == [0, 1]
    assert [part["step"] for part in document["parts"]] == [0, 1]
    assert document["read"]["step"] == 1


def test_processes_are_listed_as_such_and_chosen_by_rank(
    run: Run, dump: Dump, tmp_path: Path
) -> None:
    for process in (57, 17620):
        copytree(
            dump("pt_none") / "statistics_mix" / "step0" / "proc17620",
            tmp_path / "step0" / f"proc{process}",
        )
    document = inspect_dump(run, tmp_path, "--rank", "57")
    assert document["ranks"] == [57, 17620]
    assert {(part["rank"], part["process"]) for part in document["parts"]} == {
        (57, 57),
        (17620, 17620),
    }
    assert (document["read"]["rank"], document["read"]["process"]) == (57, 57)
    text = run("inspect", tmp_path, "--rank", "57").stdout
    assert "step 0, process 57" in text
    rows = [line.split() for line in text.splitlines() if line]
    assert ["ranks", "unknown"] in rows
    assert ["processes", "57,", "17620"] in rows


def test_a_missing_step_is_an_error_that_lists_the_parts(run: Run, dump: Dump) -> None:
    result = run("inspect", dump("pt_none"), "--step", 7)
    assert result.exit_code == 2
    assert "has no step 7; it holds: " in result.stderr
    assert "step 0" in result.stderr
