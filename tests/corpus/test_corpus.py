"""Logs, settings and foreign files in the grammar of every program, with known answers.

A third is held out: it is counted, and nothing is said about the single case.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dumpdiff.model.errors import DumpError
from dumpdiff.run_settings import Settings, compare, read_settings
from dumpdiff.run_settings.settings import FRAMEWORK_NAMES
from dumpdiff.training_logs import read_log

FOLDER = Path(__file__).parent
Case = Mapping[str, Any]
MAX_FALSE_SHARE = 0.02  #: of the differences that are named


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


LOGS: list[Case] = load("logs.yaml")
FOREIGN_FILES: list[Case] = load("foreign_files.yaml")
SETTINGS: Mapping[str, Any] = load("settings_pairs.yaml")
PAIRS: list[Case] = SETTINGS["pairs"]


def select(cases: list[Case], *, held_out: bool) -> list[Case]:
    return [case for case in cases if case.get("held_out", False) == held_out]


def name_case(case: Case) -> str:
    return str(case.get("name") or f"{case['target']} {case.get('edits', '')}")


def write_file(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def check_log(case: Case, folder: Path) -> None:
    path = write_file(folder, case["file"], case["text"])
    if case.get("refused"):
        with pytest.raises(DumpError, match="no training step is printed"):
            read_log(path)
        return
    curves = read_log(path)
    assert (curves.format, curves.steps.tolist()) == (case["format"], case["steps"])
    assert curves.loss.tolist() == pytest.approx(case["losses"], nan_ok=True)


def check_foreign_file(case: Case, folder: Path) -> None:
    path = write_file(folder, case["file"], case["text"])
    answer = case["answer"]
    if answer in FRAMEWORK_NAMES:
        assert read_settings(path).framework == answer
        return
    with pytest.raises(DumpError, match=re.escape(answer)):
        read_settings(path)


def read_side(case: Case, side: int, folder: Path) -> Settings:
    name = case["target"] if side == 0 else case.get("reference", case["target"])
    text = SETTINGS["documents"][name]
    for old, new in case.get("edits", []) if side == 0 else []:
        assert old in text
        text = text.replace(old, new)
    path = write_file(folder / str(side), name, text)
    if "arguments" in case:
        return read_settings(f"bash {shlex.quote(str(path))} {case['arguments'][side]}")
    return read_settings(path)


def list_differing(case: Case, folder: Path) -> set[str]:
    comparison = compare(read_side(case, 0, folder), read_side(case, 1, folder))
    return {row.setting for row in comparison.select_rows("differ", "unsupported", matters=True)}


def check_pair(case: Case, folder: Path) -> None:
    assert list_differing(case, folder) == set(case["differ"])


def count_right(cases: list[Case], check: Callable[[Case, Path], None], folder: Path) -> int:
    n_right = 0
    for number, case in enumerate(cases):
        try:
            check(case, folder / str(number))
        except (AssertionError, DumpError, pytest.fail.Exception):
            continue
        n_right += 1
    return n_right


def count_differences(pairs: list[Case], folder: Path) -> tuple[int, int, int]:
    """Return how many differences there are, how many of them are named, and how many others."""
    n_expected = n_named = n_false = 0
    for number, case in enumerate(pairs):
        differing = list_differing(case, folder / str(number))
        n_expected += len(case["differ"])
        n_named += len(differing.intersection(case["differ"]))
        n_false += len(differing.difference(case["differ"]))
    return n_expected, n_named, n_false


@pytest.mark.parametrize("case", select(LOGS, held_out=False), ids=name_case)
def test_an_excerpt_of_a_log_is_read_right_or_refused(case: Case, tmp_path: Path) -> None:
    check_log(case, tmp_path)


@pytest.mark.parametrize("case", select(FOREIGN_FILES, held_out=False), ids=name_case)
def test_a_foreign_file_is_recognized_or_refused_by_name(case: Case, tmp_path: Path) -> None:
    check_foreign_file(case, tmp_path)


@pytest.mark.parametrize("case", select(PAIRS, held_out=False), ids=name_case)
def test_a_pair_of_settings_differs_in_what_was_changed(case: Case, tmp_path: Path) -> None:
    check_pair(case, tmp_path)


@pytest.mark.parametrize(
    ("cases", "check"),
    [(LOGS, check_log), (FOREIGN_FILES, check_foreign_file)],
    ids=["logs", "foreign files"],
)
def test_the_held_out_third_is_right(
    cases: list[Case], check: Callable[[Case, Path], None], tmp_path: Path
) -> None:
    held_out_cases = select(cases, held_out=True)
    assert len(held_out_cases) >= len(cases) // 3
    n_right = count_right(held_out_cases, check, tmp_path)
    assert n_right == len(held_out_cases), f"{n_right} of {len(held_out_cases)} are right"


def test_every_held_out_difference_is_named_and_few_others(tmp_path: Path) -> None:
    held_out_pairs = select(PAIRS, held_out=True)
    assert len(held_out_pairs) >= len(PAIRS) // 3
    n_expected, n_named, n_false = count_differences(PAIRS, tmp_path)
    assert n_named == n_expected, f"{n_named} of {n_expected} differences are named"
    assert n_false <= MAX_FALSE_SHARE * n_named, f"{n_false} are false, {n_named} right"


def test_the_corpus_has_the_size_that_was_asked_for() -> None:
    assert (len(LOGS) >= 30, len(PAIRS) >= 40, len(FOREIGN_FILES) >= 20) == (True, True, True)
