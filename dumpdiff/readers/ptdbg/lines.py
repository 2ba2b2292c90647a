"""The lines of a ptdbg_ascend ``.pkl``, which in spite of its name is a text file with one JSON list a line.

Damaged lines (two processes wrote one file, a full disk, a crash) are salvaged record by record.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...model.trace import Problem
from ..call_records import to_float_array
from ..stack_frames import Frame, Site, build_site

#: Prototypes wrote whole tensors into a line (49 MB were seen); beyond this a line is skipped.
LONGEST_LINE = 256 << 20
_SALVAGE_ATTEMPTS = 32  #: per damaged line; each costs a scan of the line
_LISTED = 8  #: line numbers spelled out in a problem

_decode = json.JSONDecoder().raw_decode
_START = re.compile(
    rb'(?m)^\s*\["[^"\n]{1,1000}?(?:forward|backward)[._](?:input|output|stack_info)[^"\n]{0,100}", *[\[\d]'
)

_NAME = re.compile(r"(?P<call>.+)[._](?P<io>input|output|stack_info)(?P<position>(?:\.\d+)*)")
_CALL = re.compile(r"(?P<api>.+)[._](?P<index>\d+|abnormal)[._](?P<direction>forward|backward)")
#: Before 2023-01: no call index, or a counter of all calls in front.
_PROTOTYPE_CALL = re.compile(
    r"(?P<counter>\d+_)?(?P<api>[A-Za-z]+_.+)_(?P<direction>forward|backward)"
)


class Call(NamedTuple):
    """What a name says of the call: ``Functional.linear.18.forward``."""

    name: str  #: Functional.linear.18.forward
    api: str  #: Functional.linear
    is_indexed: bool  #: whether the name tells calls of one API apart
    is_backward: bool

    @property
    def forward(self) -> str:
        """Name of the forward call that a backward call belongs to, '' for a forward call."""
        return self.name[: -len("backward")] + "forward" if self.is_backward else ""


class Record(NamedTuple):
    """One tensor or Python scalar as recorded, in whichever era."""

    line: int
    name: str
    hash: str
    dtype: str
    shape: Any
    statistics: list[Any]
    n_items: int  #: items in the line, which tells the eras apart


class StackLine(NamedTuple):
    """The call stack of the call whose name starts like this line's."""

    line: int
    name: str
    site: Site


class Damage:
    """Lines that are not as they should be, counted by what is wrong with them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._lines: dict[str, list[int]] = defaultdict(list)

    def add(self, line: int, what: str) -> None:
        """Count a line (from 1) under a description."""
        self._lines[what].append(line)

    def list_problems(self) -> list[Problem]:
        """One problem for each description, with the first line numbers spelled out."""
        found = []
        for what, lines in self._lines.items():
            listed = ", ".join(map(str, lines[:_LISTED])) + (
                ", ..." if len(lines) > _LISTED else ""
            )
            text = f"{what}; lines {listed}" if len(lines) > 1 else what
            found.append(Problem(self.file, text, line=lines[0], count=len(lines)))
        return found


def is_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a ptdbg_ascend dump, judged by its records."""
    return _START.search(head) is not None


def parse_name(name: str) -> tuple[Call, str, str] | None:
    """Call, slot kind (input, output or stack_info) and position ('.0', '.0.1' or ''); None if it has no such form."""
    if (match := _NAME.fullmatch(name)) is None:
        return None
    said, io, position = match.groups()
    call = _parse_call(said)
    return None if call is None else (call, io, position)


@lru_cache(maxsize=1 << 12)
def _parse_call(name: str) -> Call | None:
    if match := _CALL.fullmatch(name):
        return Call(
            name, match["api"], match["index"] != "abnormal", match["direction"] == "backward"
        )
    if match := _PROTOTYPE_CALL.fullmatch(name):
        return Call(
            name, match["api"], match["counter"] is not None, match["direction"] == "backward"
        )
    return None


def read_lines(path: Path, damage: Damage) -> Iterator[Record | StackLine]:
    """Every record of the file in order; what is wrong is counted in ``damage``."""
    sites: dict[
        str, Site
    ] = {}  # by the text of the frames: stacks repeat, and are 70 % of a file's bytes
    for line, text in _lines(path, damage):
        name, mark, frames = text.partition('stack_info", ')
        if mark and frames in sites and name.startswith('["'):
            yield StackLine(line, f"{name[2:]}stack_info", sites[frames])
            continue
        try:
            item, end = _decode(text)
            if end < len(text):
                raise ValueError("more than one list")
        except (ValueError, RecursionError):
            salvaged = [
                record for item in _salvage(text) if (record := _record(line, item)) is not None
            ]
            used = "; whole records in it were used" if salvaged else ", skipped"
            damage.add(line, f"damaged: not one JSON list{used}")
            yield from salvaged
            continue
        record = _record(line, item)
        if record is None:
            damage.add(line, "not a record of a tensor or a stack, skipped")
            continue
        if mark and type(record) is StackLine:
            sites[frames] = record.site
        yield record


def _lines(path: Path, damage: Damage) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is neither blank nor beyond all measure."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE and not line.endswith("\n"):
                damage.add(number, f"longer than {LONGEST_LINE >> 20} MiB, skipped")
                while line and not line.endswith("\n"):
                    line = file.readline(LONGEST_LINE)
            elif text := line.strip():
                yield number, text


def _salvage(text: str) -> Iterator[Any]:
    """Whole JSON lists inside a damaged line."""
    decoder = json.JSONDecoder()
    position = text.find('["')
    for _ in range(_SALVAGE_ATTEMPTS):
        if position < 0:
            return
        try:
            item, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield item
        position = text.find('["', end)


def _record(line: int, item: Any) -> Record | StackLine | None:  # noqa: PLR0911  one for each era
    """What a decoded line is, told by the number and the types of its items."""
    if type(item) is not list or not item or type(item[0]) is not str:
        return None
    if len(item) == 6:  # nearly every line
        name, _, checksum, dtype, shape, statistics = item
        if type(dtype) is not str or type(statistics) is not list:
            return None
        return Record(
            line, name, checksum if type(checksum) is str else "", dtype, shape, statistics, 6
        )
    match item:
        case [name, list(frames)] if name.endswith("stack_info"):
            return StackLine(line, name, _site(frames))
        case [
            name,
            int(),
            list(),
            str(dtype),
            list() | str() as shape,
        ]:  # overflow dump: no statistics
            return Record(line, name, "", dtype, shape, [], 5)
        case [name, list(values), str(dtype), list() | str() as shape]:  # 2022: the whole tensor
            return Record(line, name, "", dtype, shape, _measure(values), 4)
        case [
            name,
            _,
            list(),
            str(dtype),
            list() | str() as shape,
            list(statistics),
            checksum,
            norm,
        ]:
            statistics = [*(statistics[:3] or [None] * 3), norm]
            return Record(
                line, name, checksum if type(checksum) is str else "", dtype, shape, statistics, 8
            )
    return None


def _site(frames: list[Any]) -> Site:
    return build_site(
        Frame(frame[0], str(frame[1]), str(frame[2]), str(frame[3] or ""))
        for frame in frames
        if isinstance(frame, list) and len(frame) == 4 and isinstance(frame[0], str)
    )


def _measure(values: list[Any]) -> list[float]:
    """Max, min, mean and norm of a flat list of numbers."""
    array = to_float_array(values)
    if not array.size:
        return []
    return [
        float(array.max()),
        float(array.min()),
        float(array.mean()),
        float(np.linalg.norm(array)),
    ]
