"""Both sides of a large comparison are read at the same time, in two processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.api import sides
from dumpdiff.model import background
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace
from dumpdiff.readers.parts import Part

Dump = Callable[[str], Path]


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dump counts as large, and this process may be copied."""
    monkeypatch.setattr(sides, "_MIN_BYTES", 0)
    monkeypatch.setattr(background, "can_fork", lambda: True)


def compare(dump: Dump) -> str:
    return dumpdiff.align(dump("ms_mf_attn_scale"), dump("pt_none")).to_csv()


def test_two_processes_give_the_same_result(dump: Dump, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "can_fork", lambda: False)
    expected = compare(dump)
    paths_read_here = []
    read_part = sides.readers.read_part

    def read(part: Part) -> Trace:
        paths_read_here.append(part.path)
        return read_part(part)

    monkeypatch.setattr(sides, "_MIN_BYTES", 0)
    monkeypatch.setattr(background, "can_fork", lambda: True)
    monkeypatch.setattr(sides.readers, "read_part", read)
    assert compare(dump) == expected
    assert len(paths_read_here) == 1
    assert dump("ms_mf_attn_scale") in paths_read_here[0].parents


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("side", ["target", "reference"])
def test_what_one_of_them_cannot_read_is_reported(dump: Dump, tmp_path: Path, side: str):
    damaged = tmp_path / "step0" / "rank0" / "dump.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"task": "statistics", "data": 3}')
    dumps = {"target": dump("pt_none"), "reference": dump("pt_none")} | {side: damaged}
    with pytest.raises(DumpError, match=r"rank0/dump.json: expected msprobe's dump.json"):
        dumpdiff.align(**dumps)
