"""Both sides of a large comparison are read at the same time, in two processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import dumpdiff
from dumpdiff.api import sides
from dumpdiff.model.errors import DumpError

Dump = Callable[[str], Path]


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dump counts as large, and there are two cores."""
    monkeypatch.setattr(sides, "_MIN_BYTES", 0)
    monkeypatch.setattr(sides, "count_cores", lambda: 2)


def compare(dump: Dump) -> str:
    return dumpdiff.align(dump("ms_mf_attn_scale"), dump("pt_none")).to_csv()


def test_two_processes_give_the_same_result(dump: Dump, monkeypatch: pytest.MonkeyPatch):
    expected = compare(dump)
    monkeypatch.setattr(sides, "_MIN_BYTES", 0)
    monkeypatch.setattr(sides, "count_cores", lambda: 2)
    monkeypatch.setattr(sides.readers, "read_part", None)  # this process reads nothing
    assert compare(dump) == expected


@pytest.mark.usefixtures("two_processes")
def test_what_one_of_them_cannot_read_is_reported(dump: Dump, tmp_path: Path):
    damaged = tmp_path / "step0" / "rank0" / "dump.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"task": "statistics", "data": 3}')
    with pytest.raises(DumpError, match=r"rank0/dump.json: expected msprobe's dump.json"):
        dumpdiff.align(damaged, dump("pt_none"))


@pytest.mark.usefixtures("two_processes")
def test_a_process_that_the_system_ended_is_not_missed(dump: Dump, monkeypatch: pytest.MonkeyPatch):
    def lose_workers(*_arguments: Any) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(sides, "submit_calls", lose_workers)
    assert "attention" in compare(dump)
