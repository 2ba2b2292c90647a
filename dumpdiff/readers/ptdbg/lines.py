"""Parse the lines of a ptdbg_ascend ``.pkl`` (0.1 to 6.0), a text file with one JSON list per line.

Records are salvaged from damaged lines (two processes wrote one file, a full disk, a crash).
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

from ...model.input_files import open_input_text
from ...model.trace import Problem
from ..call_records import to_float_array
from ..stack_frames import Frame, Site, build_site

#: Characters; a longer line is skipped. Prototypes wrote whole tensors into a line (49 MB were
#: seen).
MAX_LINE_LENGTH = 256 << 20
_SALVAGE_ATTEMPTS = 32  #: per damaged line; each attempt scans the line
_MAX_LISTED_LINES = 8  #: line numbers listed in a problem

_decode = json.JSONDecoder().raw_decode
_START = re.compile(
    rb'(?m)^\s*\["[^"\n]{1,1000}?(?:forward|backward)[._](?:input|output|stack_info)'
    rb'[^"\n]{0,100}", *[\[\d]'
)

_NAME = re.compile(r"(?P<call>.+)[._](?P<io>input|output|stack_info)(?P<position>(?:\.\d+)*)")
_CALL = re.compile(r"(?P<api>.+)[._](?P<index>\d+|abnormal)[._](?P<direction>forward|backward)")
#: Calls before 2023-01 have no index, or start with a counter of all calls.
_PROTOTYPE_CALL = re.compile(
    r"(?P<counter>\d+_)?(?P<api>[A-Za-z]+_.+)_(?P<direction>forward|backward)"
)


class Call(NamedTuple):
    """The parts of a call's name, such as ``Functional.linear.18.forward``."""

    name: str  #: Functional.linear.18.forward
    api: str  #: Functional.linear
    is_indexed: bool  #: whether the name tells calls of one API apart
    is_backward: bool

    @property
    def forward(self) -> str:
        """Name of the forward call that a backward call belongs to, '' for a forward call."""
        return self.name[: -len("backward")] + "forward" if self.is_backward else ""


class Record(NamedTuple):
    """One tensor or Python scalar as recorded, by any version."""

    line: int
    name: str
    hash: str
    dtype: str
    shape: Any
    statistics: list[Any]
    n_items: int  #: number of items in the line, which differs between versions


class StackLine(NamedTuple):
    """The call stack of the call whose name begins like this line's name."""

    line: int
    name: str
    site: Site


class Damage:
    """Damaged lines of one file, counted by description."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._lines: dict[str, list[int]] = defaultdict(list)
        self._foreign: set[str] = set()

    def add(self, line: int, description: str, *, is_foreign: bool = False) -> None:
        """Count a line (the first is 1) under a description.

        A foreign line is whole, but not one of ptdbg_ascend; the records around it are not in
        doubt.
        """
        self._lines[description].append(line)
        if is_foreign:
            self._foreign.add(description)

    def list_problems(self) -> list[Problem]:
        """Return one problem for each description, with the first line numbers."""
        problems = []
        for description, lines in self._lines.items():
            message = description
            if len(lines) > 1:
                listed_lines = [str(line) for line in lines[:_MAX_LISTED_LINES]]
                if len(lines) > _MAX_LISTED_LINES:
                    listed_lines.append("...")
                message = f"{description}; lines {', '.join(listed_lines)}"
            weakens = description not in self._foreign
            problem = Problem(self.file, message, lines[0], len(lines), weakens=weakens)
            problems.append(problem)
        return problems


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a ptdbg_ascend dump, judged by its records."""
    return _START.search(head) is not None


def parse_name(name: str) -> tuple[Call, str, str] | None:
    """Return the call, the kind of slot and the position ('.0', '.0.1', '').

    The kind of slot is input, output or stack_info. None if the name has no such form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    call_name, slot_kind, position = match.groups()
    call = _parse_call(call_name)
    return None if call is None else (call, slot_kind, position)


@lru_cache(maxsize=1 << 12)
def _parse_call(name: str) -> Call | None:
    match = _CALL.fullmatch(name)
    if match is not None:
        is_indexed = match["index"] != "abnormal"
        return Call(name, match["api"], is_indexed, match["direction"] == "backward")
    match = _PROTOTYPE_CALL.fullmatch(name)
    if match is not None:
        is_indexed = match["counter"] is not None
        return Call(name, match["api"], is_indexed, match["direction"] == "backward")
    return None


def read_lines(path: Path, damage: Damage) -> Iterator[Record | StackLine]:
    """Yield every record and stack of the file in order; count damaged lines in ``damage``."""
    # Call sites by the text of their frames: stacks repeat, and are 70 % of a file's bytes
    sites: dict[str, Site] = {}
    for number, text in _number_lines(path, damage):
        name, separator, frames = text.partition('stack_info", ')
        if separator and frames in sites and name.startswith('["'):
            yield StackLine(number, f"{name[2:]}stack_info", sites[frames])
            continue
        try:
            item, end = _decode(text)
            if end < len(text):
                raise ValueError("more than one list")
        except (ValueError, RecursionError):
            yield from _salvage_records(number, text, damage)
            continue
        record = _parse_record(number, item)
        if record is None:
            damage.add(number, "not a record of a tensor or a stack, skipped", is_foreign=True)
            continue
        if separator and type(record) is StackLine:
            sites[frames] = record.site
        yield record


def _number_lines(path: Path, damage: Damage) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every line that is neither blank nor too long."""
    with open_input_text(path, newline="\n") as file:
        number = 0
        while line := file.readline(MAX_LINE_LENGTH):
            number += 1
            if len(line) == MAX_LINE_LENGTH and not line.endswith("\n"):
                damage.add(number, f"longer than {MAX_LINE_LENGTH >> 20} MiB, skipped")
                while line and not line.endswith("\n"):
                    line = file.readline(MAX_LINE_LENGTH)
            elif text := line.strip():
                yield number, text


def _salvage_records(number: int, text: str, damage: Damage) -> list[Record | StackLine]:
    """Return the records that are whole in a damaged line."""
    records = []
    for item in _find_json_lists(text):
        record = _parse_record(number, item)
        if record is not None:
            records.append(record)
    consequence = "; whole records in it were used" if records else ", skipped"
    damage.add(number, f"damaged: not one JSON list{consequence}")
    return records


def _find_json_lists(text: str) -> Iterator[Any]:
    """Yield the whole JSON lists in a damaged line."""
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


def _parse_record(line: int, item: Any) -> Record | StackLine | None:  # noqa: PLR0911
    """Return the record in a decoded line, recognized by the number and the types of its items."""
    if type(item) is not list or not item or type(item[0]) is not str:
        return None
    if len(item) == 6:  # nearly every line
        name, _, checksum, dtype, shape, statistics = item
        if type(dtype) is not str or type(statistics) is not list:
            return None
        return Record(line, name, _get_text(checksum), dtype, shape, statistics, 6)
    match item:
        case [name, list(frames)] if name.endswith("stack_info"):
            return StackLine(line, name, _parse_site(frames))
        # overflow dump, without statistics
        case [name, int(), list(), str(dtype), list() | str() as shape]:
            return Record(line, name, "", dtype, shape, [], 5)
        # prototype of 2022, with the whole tensor in the line
        case [name, list(values), str(dtype), list() | str() as shape]:
            return Record(line, name, "", dtype, shape, _compute_statistics(values), 4)
        # API dump of troubleshooter
        case [
            name, _, list(), str(dtype), list() | str() as shape, list(statistics), checksum, norm
        ]:  # fmt: skip
            statistics = [*(statistics[:3] or [None] * 3), norm]
            return Record(line, name, _get_text(checksum), dtype, shape, statistics, 8)
    return None


def _get_text(checksum: Any) -> str:
    return checksum if type(checksum) is str else ""


def _parse_site(frames: list[Any]) -> Site:
    parsed_frames = []
    for frame in frames:
        is_frame = isinstance(frame, list) and len(frame) == 4 and isinstance(frame[0], str)
        if not is_frame:
            continue
        file, line, function, code = frame
        parsed_frames.append(Frame(file, str(line), str(function), str(code or "")))
    return build_site(parsed_frames)


def _compute_statistics(values: list[Any]) -> list[float]:
    """Return max, min, mean and norm of a flat list of numbers; [] if it is empty."""
    array = to_float_array(values)
    if not array.size:
        return []
    return [
        float(array.max()),
        float(array.min()),
        float(array.mean()),
        float(np.linalg.norm(array)),
    ]
