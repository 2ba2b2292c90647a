"""Every format does the same: it is recognized, inspected, aligned, and damage is reported.

``formats.CASES`` is the source of the table in docs/formats.md. Recordings of ``dumpdiff.record``
are made in tests/recorder, folders of tensors are in test_tensor_folder.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import DumpError, readers
from readers.formats import BEGIN, CASES, END, FormatCase, build_table

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"

each_format = pytest.mark.parametrize("case", CASES, ids=lambda case: case.format)


@pytest.fixture
def find(dump: Callable[[str], Path]) -> Callable[[str], Path]:
    """``find("sglang/fault")``: a folder in a shipped archive."""

    def find(path: str) -> Path:
        name, _, folder = path.partition("/")
        return dump(name) / folder

    return find


def test_every_format_has_a_case() -> None:
    elsewhere = {"manifest"}
    names = {reader.FORMAT for reader in readers.FORMATS}
    assert {case.format for case in CASES} == names - elsewhere


@each_format
def test_it_is_recognized_whatever_its_folder_is_called(
    case: FormatCase, find: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(find(case.dump), tmp_path / "x")
    parts = readers.find_parts(tmp_path / "x")
    assert {part.format for part in parts} == {case.format}


@each_format
def test_it_is_inspected(case: FormatCase, find: Callable[[str], Path]) -> None:
    trace = readers.read_part(readers.find_parts(find(case.dump))[0])
    assert trace.source.format == case.format
    assert len(trace.ops) >= 25
    assert trace.tensors["op"].isin(range(len(trace.ops))).all()
    assert (trace.tensors["shape"].notna() & (trace.tensors["size"] >= 0)).any()


@each_format
def test_a_clean_twin_agrees(case: FormatCase, find: Callable[[str], Path]) -> None:
    result = dumpdiff.align(find(case.twin), find(case.dump), step=case.step)
    assert result.verdict == "aligned"


@each_format
def test_a_fault_is_located(case: FormatCase, find: Callable[[str], Path]) -> None:
    result = dumpdiff.align(find(case.fault), find(case.dump), step=case.step)
    assert result.verdict == "diverged"
    finding = result.first_divergence
    assert finding is not None
    assert any(case.place in name for name in (*finding.target_ops, finding.scope))


@each_format
def test_a_damaged_file_is_reported(
    case: FormatCase, find: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(find(case.dump), tmp_path / "x")
    file = min((tmp_path / "x").rglob(case.damaged_file))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    messages = []
    try:
        trace = readers.read_part(readers.find_parts(tmp_path / "x")[0])
        messages += [str(problem) for problem in trace.problems if problem.weakens]
    except DumpError as error:
        messages.append(str(error))
    assert any(file.name in message for message in messages)


def test_the_table_of_the_page_is_that_of_the_tests() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert table == build_table()
