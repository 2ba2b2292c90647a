"""``dumpdiff dump-config mindspore`` and ``check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from dumpdiff.capture.mindspore import BACKENDS
from dumpdiff.cli.dump_config.mindspore import mindspore

from .conftest import Run


@pytest.fixture
def written(run: Run, tmp_path: Path):
    """``written("--backend", "cpu")``: the configuration that the options make."""

    def write(*options: str) -> dict[str, Any]:
        file = tmp_path / "dump.json"
        result = run("dump-config", "mindspore", "--path", tmp_path / "dump", *options, "-o", file)
        assert result.exit_code == 0, result.stderr
        return json.loads(file.read_text())

    return write


def test_writes_what_check_accepts_and_says_what_to_do_next(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    result = run(
        "dump-config", "mindspore", "--backend", "cpu", "--path", tmp_path / "dump", "-o", file
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert f'eval "$(dumpdiff env {file})"' in result.stdout
    checked = run("dump-config", "check", file, "--backend", "cpu")
    assert (checked.exit_code, checked.stdout) == (0, f"{file}: valid for MindSpore 2.10 on cpu\n")


def test_standard_output_holds_the_configuration_alone(run: Run) -> None:
    result = run("dump-config", "mindspore", "--path", "/tmp/dump")
    assert json.loads(result.stdout)["common_dump_settings"]["path"] == "/tmp/dump"


def test_without_a_path_the_dump_goes_into_the_current_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.chdir(folder)
    result = run("dump-config", "mindspore")
    assert json.loads(result.stdout)["common_dump_settings"]["path"] == str(folder / "dump")


@pytest.mark.parametrize(
    ("options", "section", "fields"),
    [
        (["--iteration", "0|5-8"], "common", {"iteration": "0|5-8"}),
        (["--net-name", "Llama"], "common", {"net_name": "Llama"}),
        (["--input-output", "output"], "common", {"input_output": 2}),
        (
            ["--kernels", "MatMul", "--kernels", "Add"],
            "common",
            {"dump_mode": 1, "kernels": ["MatMul", "Add"]},
        ),
        (["--set-dump"], "common", {"dump_mode": 2}),
        (["--device", "0,3-5"], "common", {"support_device": [0, 3, 4, 5]}),
        (["--initial-iteration", "10", "--iteration", "11"], "common", {"initial_iteration": 10}),
        (
            ["--op-debug-mode", "3", "--overflow-number", "2"],
            "common",
            {"op_debug_mode": 3, "overflow_number": 2},
        ),
        (
            ["--saved-data", "statistic", "--stat", "max, nan count"],
            "common",
            {"saved_data": "statistic", "statistic_category": ["max", "nan count"]},
        ),
        (
            ["--saved-data", "statistic", "--stat-on", "device", "--stat-precision", "low"],
            "e2e",
            {"stat_calc_mode": "device", "device_stat_precision_mode": "low"},
        ),
        (["--sample-num", "9"], "e2e", {"sample_mode": 1, "sample_num": 9}),
        (["--save-kernel-args"], "e2e", {"save_kernel_args": True}),
        (["--ms-version", "2.2.14", "--saved-data", "full"], "common", {"file_format": "npy"}),
    ],
)
def test_an_option_sets_its_fields(
    options: list[str], section: str, fields: dict[str, Any], written
) -> None:
    values = written(*options)[f"{section}_dump_settings"]
    assert {name: values.get(name) for name in fields} == fields


def test_broken_rules_are_printed_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    options = [
        "--backend",
        "cpu",
        "--saved-data",
        "statistic",
        "--path",
        "dump",
        "--iteration",
        "5-",
    ]
    result = run("dump-config", "mindspore", *options, "-o", file)
    assert result.exit_code == 2
    assert [line.split("[")[-1] for line in result.stderr.splitlines()] == [
        "path-absolute]",
        "statistics-cpu]",
        "iteration-none]",
    ]
    assert not file.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "a"], "--device a: write numbers and ranges"),
        (["--ms-version", "two"], "'two' is not a version of MindSpore"),
        (["--ms-version", "1.2"], "--ms-version 1.2: configurations are known of 1.3 to 1.10"),
        (["--ms-version", "9.9"], "known of 1.3 to 1.10 and 2.0 to 2.10; give one of them"),
        (["--ms-version", "1.11"], "known of 1.3 to 1.10 and 2.0 to 2.10; give one of them"),
        (["--ms-version", "2.1234"], "'2.1234' is not a version of MindSpore"),
        (["-o", "/no/such/folder/dump.json"], "there is no folder"),
    ],
)
def test_wrong_usage_is_one_line(options: list[str], message: str, run: Run) -> None:
    result = run("dump-config", "mindspore", *options)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert message in result.stderr


def test_check_prints_every_violation_and_exits_with_1(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text('{"common_dump_settings": {"dump_mode": "0"}, "e2e": {}}')
    result = run("dump-config", "check", file)
    assert result.exit_code == 1
    assert "error: common_dump_settings.dump_mode: '0' is not a whole number" in result.stdout
    assert "ignored: e2e: is not known" in result.stdout


def test_check_prints_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text("{}")
    document = json.loads(run("dump-config", "check", file, "--json", "--ms-version", "2.6").stdout)
    assert (document["file"], document["target"]) == (str(file), "MindSpore 2.6 on ascend")
    assert [violation["rule"] for violation in document["violations"]] == ["section-missing"]


def test_check_compares_kernels_with_an_earlier_dump(run: Run, dump, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    options = ["--path", tmp_path / "dump", "--kernels", "MatMul", "--kernels", "Conv2D"]
    assert run("dump-config", "mindspore", *options, "-o", file).exit_code == 0
    result = run("dump-config", "check", file, "--dump", dump("ms_graph"))
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("writes nothing: common_dump_settings.kernels: 'Conv2D' selects nothing")


def test_check_of_a_missing_file_is_2(run: Run, tmp_path: Path) -> None:
    result = run("dump-config", "check", tmp_path / "none.json")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)


def test_the_folder_of_a_run_elsewhere_is_not_checked_here(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ["dump-config", "mindspore", "--path", tmp_path / "file" / "dump"]
    assert run(*options).exit_code == 2
    assert run(*options, "--elsewhere").exit_code == 0


def test_the_backends_are_those_of_the_library() -> None:
    (option,) = [parameter for parameter in mindspore.params if parameter.name == "backend"]
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == list(BACKENDS)


@pytest.mark.parametrize("command", ["mindspore", "check"])
def test_help_has_examples_and_exit_codes(command: str, run: Run) -> None:
    help_text = run("dump-config", command, "-h").stdout
    assert "Examples:" in help_text
    assert "Exit codes:" in help_text


def test_a_name_that_mindspore_refuses_is_not_written(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dump.cfg"
    result = run("dump-config", "mindspore", "--path", tmp_path / "dump", "-o", file)
    assert result.exit_code == 2
    assert "'dump.cfg' must end in .json for MindSpore to read it; call it 'dump.json'" in (
        result.stderr
    )
    assert not file.exists()


@pytest.mark.parametrize(
    ("command", "options", "old"),
    [("mindspore", [], "rank_0"), ("msprobe", ["--framework", "pytorch"], "step0")],
)
def test_a_dump_that_is_already_there_is_a_warning_and_goes_with_clean(
    run: Run, tmp_path: Path, command: str, options: list[str], old: str
) -> None:
    dump = tmp_path / "dump"
    (dump / old).mkdir(parents=True)
    (dump / "notes").mkdir()
    arguments = ("dump-config", command, *options, "--path", dump)
    result = run(*arguments)
    assert result.exit_code == 0
    assert f"warning: {dump}: already holds a dump ({old})" in result.stderr
    assert (dump / old).is_dir()
    result = run(*arguments, "--clean")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [entry.name for entry in dump.iterdir()] == ["notes"]
