"""Rules for what no CPU can show: other backends, other versions, another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumpdiff.capture.mindspore import (
    RULES,
    Options,
    Target,
    Version,
    build_configuration,
    check,
    check_file,
)
from dumpdiff.capture.mindspore.violations import SEVERITIES
from dumpdiff.model.errors import DumpError

from .cases import CASES, CPU, C, E, change

ASCEND, GE, GPU = Target("ascend"), Target("ascend-ge", Version(2, 5)), Target("gpu")


def with_version(target: Target, major: int, minor: int) -> Target:
    return target._replace(version=Version(major, minor))


def find_broken_rules(
    target: Target, common: dict[str, Any] | None = None, e2e: dict[str, Any] | None = None
) -> set[str]:
    """The rules that a sound configuration for the target breaks once these fields are changed in
    it.
    """
    config = build_configuration(Options(path="/data/dump"), target)
    change(config[C], common)
    if e2e is not None:
        change(config.setdefault(E, {}), e2e)
    return {violation.rule for violation in check(config, target, run_is_local=False)}


@pytest.mark.parametrize(
    ("target", "common", "e2e", "rule"),
    [
        (with_version(GE, 2, 6), None, None, "ge-moved"),
        (GE, None, {"enable": True}, "ge-e2e"),
        (GE, {"saved_data": "statistic", "file_format": "bin"}, None, "statistics-npy"),
        (with_version(GE, 2, 5), {"op_debug_mode": ...}, None, "field-missing"),
        (
            with_version(ASCEND, 2, 2),
            {"saved_data": "statistic"},
            {"enable": True, "trans_flag": True},
            "statistics-synchronous",
        ),
        (with_version(ASCEND, 2, 3), None, {"enable": ...}, "field-missing"),
        (with_version(ASCEND, 2, 2), {"op_debug_mode": 4}, None, "field-value"),
        (with_version(ASCEND, 1, 5), {"saved_data": "tensor"}, None, "field-version"),
        (with_version(ASCEND, 2, 5), {"initial_iteration": 0}, None, "field-version"),
        (
            with_version(ASCEND, 2, 2),
            {"dump_mode": 1, "kernels": ["name-regex(.*)"]},
            None,
            "regex-version",
        ),
        (
            ASCEND,
            {"saved_data": "statistic", "statistic_category": ["maximum"]},
            None,
            "statistics-unknown",
        ),
        (
            with_version(ASCEND, 2, 9),
            {"saved_data": "statistic", "statistic_category": ["hash"]},
            None,
            "statistics-unknown",
        ),
        (ASCEND, {"saved_data": "statistic", "statistic_category": []}, None, "statistics-none"),
        (
            ASCEND,
            {"saved_data": "statistic", "statistic_category": ["max", "md5"]},
            {"stat_calc_mode": "device"},
            "statistics-host",
        ),
        (ASCEND, {"saved_data": "full"}, {"stat_calc_mode": "device"}, "device-statistics"),
        (GPU, {"saved_data": "statistic"}, {"stat_calc_mode": "device"}, "device-statistics"),
        (GPU, {"support_device": []}, None, "device-none"),
        (ASCEND, {"op_debug_mode": 4, "iteration": "3"}, None, "exception-iteration"),
        (ASCEND, {"op_debug_mode": 4, "iteration": "all"}, {"sample_mode": 1}, "debug-data"),
        (ASCEND, {"op_debug_mode": 3, "saved_data": "statistic"}, None, "debug-data"),
        (
            ASCEND,
            {"op_debug_mode": 3, "saved_data": "statistic"},
            {"enable": False, "stat_calc_mode": "device"},
            "overflow-statistics",
        ),
    ],
)
def test_breaks(
    target: Target, common: dict[str, Any] | None, e2e: dict[str, Any] | None, rule: str
) -> None:
    assert rule in find_broken_rules(target, common, e2e)


@pytest.mark.parametrize(
    ("target", "common", "e2e"),
    [
        (ASCEND, {"saved_data": "statistic", "statistic_category": ["hash", "md5"]}, None),
        (
            ASCEND,
            {"saved_data": "statistic", "statistic_category": ["max"]},
            {"stat_calc_mode": "device"},
        ),
        (ASCEND, None, {"enable": False}),
        (ASCEND, None, {"sample_mode": 1, "sample_num": 7, "save_kernel_args": True}),
        (ASCEND, {"op_debug_mode": 3, "overflow_number": 5}, None),
        (ASCEND, {"op_debug_mode": 4, "iteration": "all"}, None),
        (ASCEND, {"dump_mode": 2}, None),
        (
            ASCEND,
            {"dump_mode": 1, "kernels": ["name-regex(Default/.*norm.*|Gradients/.*)", "MatMul"]},
            None,
        ),
        (ASCEND, {"dump_mode": 1, "kernels": ["name-regex(net[.]layers[.]0[.].*weight)"]}, None),
        (with_version(ASCEND, 2, 3), None, {"trans_flag": False}),
        (with_version(ASCEND, 2, 2), {"op_debug_mode": 1}, None),
        (CPU, {"support_device": []}, None),
        (CPU, {"dump_mode": 1, "kernels": ["", "MatMul", "name-regex(global_step)"]}, None),
        (CPU, {"initial_iteration": 10, "iteration": "10|12-14"}, None),
        (CPU, {"op_debug_mode": ..., "saved_data": ...}, {"enable": ..., "trans_flag": ...}),
    ],
)
def test_holds(target: Target, common: dict[str, Any] | None, e2e: dict[str, Any] | None) -> None:
    assert find_broken_rules(target, common, e2e) == set()


def test_ascend_needs_the_section_of_the_synchronous_dump_since_2_6() -> None:
    config = build_configuration(Options(path="/data/dump"), ASCEND)
    del config[E]
    assert [violation.rule for violation in check(config, ASCEND, run_is_local=False)] == [
        "e2e-needed"
    ]
    assert check(config, with_version(ASCEND, 2, 5), run_is_local=False) == ()


def test_the_folder_is_left_as_it_was(tmp_path: Path) -> None:
    config = build_configuration(Options(path=str(tmp_path / "deep" / "dump")), CPU)
    assert check(config, CPU) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text("")
    config = build_configuration(Options(path=str(tmp_path / "dump" / "deep")), CPU)
    assert [violation.rule for violation in check(config, CPU)] == ["path-unwritable"]
    assert check(config, CPU, run_is_local=False) == ()


def test_the_variable_stands_in_for_the_path_and_is_checked_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = build_configuration(Options(path=""), CPU)
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", "/data/v1.0")
    (violation,) = check(config, CPU)
    assert (violation.rule, violation.field) == ("path-characters", "MS_DIAGNOSTIC_DATA_PATH")
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", "/tmp")
    assert check(config, CPU) == ()


def test_a_path_that_is_no_text_is_not_missing_too() -> None:
    config = build_configuration(Options(path="/data/dump"), CPU)
    config[C]["path"] = 5
    assert [violation.rule for violation in check(config, CPU)] == ["field-type"]


def test_what_a_file_says_does_not_drive_the_terminal() -> None:
    (violation,) = check({**build_configuration(Options(path="/tmp"), CPU), "\x1b[2J\n": {}}, CPU)
    assert str(violation).isprintable()


def test_the_worst_comes_first() -> None:
    config = build_configuration(Options(path="dump", iteration="5-", kernels=("a", "a")), CPU)
    severities = [violation.severity for violation in check(config, CPU)]
    assert severities == sorted(severities, key=list(SEVERITIES).index)
    assert set(severities) == set(SEVERITIES)


@pytest.mark.parametrize("config", [None, [], 3, {C: []}, {C: {}}])
def test_what_is_no_configuration_at_all_is_said_not_raised(config: object) -> None:
    assert check(config, CPU)[0].rule in ("section-missing", "field-missing")


def test_every_rule_is_broken_by_some_test() -> None:
    here = {
        mark.args[1][number][3]
        for mark in test_breaks.pytestmark
        for number in range(len(mark.args[1]))
    }
    elsewhere = {"e2e-needed"}  # above
    assert {rule.id for rule in RULES} == here | elsewhere | {case.rule for case in CASES}


@pytest.mark.parametrize(
    "make",
    [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\xfe{")],
)
def test_a_file_that_cannot_be_read_is_an_error_of_one_line(make, tmp_path: Path) -> None:
    make(tmp_path / "dump.json")
    with pytest.raises(DumpError, match="expected a JSON file") as raised:
        check_file(tmp_path / "dump.json", CPU)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"common_dump_settings": NaN}', "null", "7"])
def test_hostile_text_is_told_not_raised(text: str, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(text)
    assert check_file(file, CPU)[0].severity == "error"


@pytest.mark.parametrize("text", ["2", "v2.6", "2.", "two"])
def test_a_version_is_two_numbers(text: str) -> None:
    with pytest.raises(DumpError, match="not a version of MindSpore"):
        Version.parse(text)


def test_a_version_may_have_more_than_two() -> None:
    assert [Version.parse(text) for text in ("2.6", "2.3.0rc2", "2.10.0")] == [
        (2, 6),
        (2, 3),
        (2, 10),
    ]
