"""A case file: paths relative to it, every part optional, every mistake told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.diagnosis.case import Case, Run, load_case, build_run
from dumpdiff.model.errors import DumpError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("ms.log", "pt.log", "again.log", "names.yaml", "data.idx", "data.bin"):
        (tmp_path / name).write_text("")
    return tmp_path


def case(folder: Path, text: str) -> Case:
    (folder / "case.yaml").write_text(text)
    return load_case(folder / "case.yaml")


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    read = case(folder, "target: {log: ms.log}\nreference: {log: pt.log, version: '0.12'}\n")
    assert read.target == Run(log=str(folder / "ms.log"))
    assert read.reference == Run(log=str(folder / "pt.log"), version="0.12")
    assert read.get_both("log") == (str(folder / "ms.log"), str(folder / "pt.log"))


def test_everything_else_is_of_both_runs(folder: Path) -> None:
    read = case(
        folder,
        "target: {log: ms.log}\nbaseline: {logs: again.log}\nmin_steps: 40\nrules: [names.yaml]\n",
    )
    assert read.baseline_logs == (str(folder / "again.log"),)
    assert read.min_steps == 40
    assert read.rules == (str(folder / "names.yaml"),)


def test_a_key_with_everything_under_it_commented_out_is_missing(folder: Path) -> None:
    read = case(
        folder,
        "target:\n  log: ms.log\n  dump:  # dump/\nreference:\n  # log: pt.log\nbaseline:\nrules:\n",
    )
    assert (read.target, read.reference) == (Run(log=str(folder / "ms.log")), Run())
    assert (read.min_steps, read.rules) == (1000, ())


def test_a_dataset_is_named_without_its_suffix(folder: Path) -> None:
    assert case(folder, "target: {data: data}").target.data == str(folder / "data")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("target: {logs: ms.log}", "case.yaml:1: unknown key 'logs'; did you mean 'log'?"),
        ("target:\n  log: nowhere.log", "case.yaml:2: there is no "),
        (
            "target: {log: ms.log}\nmin_steps: 1.5",
            "case.yaml:2: expected a whole number, 1 or more, found '1.5'",
        ),
        (
            "target: {log: ms.log}\nmin_steps: 0",
            "case.yaml:2: expected a whole number, 1 or more, found '0'",
        ),
        ("target: ms.log", "case.yaml:1: expected a mapping (key: value), found 'ms.log'"),
        ("target: [", "case.yaml:1: no valid YAML"),
        ("# nothing", "names nothing of either run; give some of: settings, "),
    ],
)
def test_a_mistake_is_told_with_its_line(folder: Path, text: str, said: str) -> None:
    with pytest.raises(DumpError) as raised:
        case(folder, text)
    assert said in str(raised.value)


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="'dumpdiff triage --init TARGET REFERENCE' writes one"):
        load_case(tmp_path / "none.yaml")


def test_parts_may_be_given_one_by_one(folder: Path) -> None:
    assert build_run({"log": str(folder / "ms.log"), "version": "1.6"}).version == "1.6"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"logg": "x"}, "'logg' is nothing that a run has; expected one of settings, "),
        ({"log": "x"}, "x: no such file"),
    ],
)
def test_wrong_parts_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(DumpError, match=said):
        build_run(given)
