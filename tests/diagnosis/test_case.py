"""A case file: paths relative to it, optional inputs, and mistakes reported with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.diagnosis.case import Case, Run, build_run, load_case
from dumpdiff.model.errors import DumpError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("ms.log", "pt.log", "again.log", "names.yaml", "data.idx", "data.bin"):
        (tmp_path / name).write_text("")
    return tmp_path


def write_case(folder: Path, text: str) -> Case:
    (folder / "case.yaml").write_text(text)
    return load_case(folder / "case.yaml")


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    loaded_case = write_case(
        folder, "target: {log: ms.log}\nreference: {log: pt.log, version: '0.12'}\n"
    )
    assert loaded_case.target == Run(log=str(folder / "ms.log"))
    assert loaded_case.reference == Run(log=str(folder / "pt.log"), version="0.12")
    assert loaded_case.get_both("log") == (str(folder / "ms.log"), str(folder / "pt.log"))


def test_everything_else_is_of_both_runs(folder: Path) -> None:
    loaded_case = write_case(
        folder,
        "target: {log: ms.log}\nbaseline: {logs: again.log}\nmin_steps: 40\nrules: [names.yaml]\n",
    )
    assert loaded_case.baseline_logs == (str(folder / "again.log"),)
    assert loaded_case.min_steps == 40
    assert loaded_case.rules == (str(folder / "names.yaml"),)


def test_a_key_with_everything_under_it_commented_out_is_missing(folder: Path) -> None:
    loaded_case = write_case(
        folder,
        "target:\n  log: ms.log\n  dump:  # dump/\nreference:\n  # log: pt.log\n"
        "baseline:\nrules:\n",
    )
    assert loaded_case.target == Run(log=str(folder / "ms.log"))
    assert loaded_case.reference == Run()
    assert (loaded_case.min_steps, loaded_case.rules) == (1000, ())


def test_a_dataset_is_named_without_its_suffix(folder: Path) -> None:
    assert write_case(folder, "target: {data: data}").target.data == str(folder / "data")


@pytest.mark.parametrize(
    ("text", "message"),
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
        ("# nothing", "names no input of either run; give some of: settings, "),
    ],
)
def test_a_mistake_is_told_with_its_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(DumpError) as raised:
        write_case(folder, text)
    assert message in str(raised.value)


def test_the_error_for_a_missing_case_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="'dumpdiff triage --init TARGET REFERENCE' writes one"):
        load_case(tmp_path / "none.yaml")


def test_parts_may_be_given_one_by_one(folder: Path) -> None:
    assert build_run({"log": str(folder / "ms.log"), "version": "1.6"}).version == "1.6"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"logg": "x"}, "'logg' is no input of a run; expected one of settings, "),
        ({"log": "x"}, "x: no such file"),
    ],
)
def test_wrong_parts_are_refused(inputs: dict[str, str], message: str) -> None:
    with pytest.raises(DumpError, match=message):
        build_run(inputs)


def test_settings_may_be_a_command_that_starts_a_script(folder: Path) -> None:
    (folder / "run.sh").write_text("torchrun pretrain_gpt.py --num-layers $1\n")
    loaded_case = write_case(folder, 'target: {settings: "bash run.sh 4"}')
    assert loaded_case.target.settings == f"bash {folder / 'run.sh'} 4"
