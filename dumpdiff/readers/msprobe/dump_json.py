"""Read the JSON files of an msprobe dump (1.0 to 26.2): dump.json, stack.json and construct.json.

A file is parsed at once; from a damaged dump.json the complete entries are salvaged one by one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson

from ...model.errors import DumpError
from ...model.input_files import read_input_bytes
from ...model.trace import Problem

HEAD_SIZE = 4096  #: bytes of a file that decide whether it is a dump.json

_HEAD = re.compile(rb'\s*\{\s*"(?:task|level|framework|dump_data_dir|data)"\s*:')
#: Level "debug" holds values that the user saved by hand, not calls.
_DEBUG_LEVEL = re.compile(rb'"level"\s*:\s*"debug"')
_DATA = re.compile(r'"data"\s*:\s*\{')
_KEY = re.compile(r'[\s,]*"((?:[^"\\]|\\.)*)"\s*:\s*')
#: msprobe indents by one; entries are two levels deep.
_NEXT_ENTRY = re.compile(r'^  "', re.MULTILINE)
_END = re.compile(r"\s*\}")


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a dump.json or debug.json of msprobe."""
    return _HEAD.match(head) is not None and b'"data"' in head[:HEAD_SIZE]


def holds_saved_values(head: bytes) -> bool:
    """Whether a file that begins like this is a debug.json: values saved by hand, not calls."""
    return _DEBUG_LEVEL.search(head) is not None


def read_dump(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Return the header, the entries in order, and the problems (lost entries) of a dump.json.

    Raises DumpError if no entry can be read.
    """
    data = _read_bytes(path)
    problems: list[Problem] = []
    try:
        content = _parse_json(data)
    except RecursionError:
        raise DumpError(f"{path}: JSON nested too deeply for a dump.json") from None
    except ValueError:
        content, problems = _salvage_entries(path, _decode(data))
    entries = content.pop("data", None) if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise DumpError(
            f'{path}: expected msprobe\'s dump.json with an object "data"; record it again'
        )
    return content, entries, problems


def read_side_file(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return the object in stack.json or construct.json; {} if the file is missing or damaged.

    A damaged file is reported as a problem.
    """
    if not path.is_file():
        return {}, []
    try:
        content = _parse_json(_read_bytes(path))
    except (ValueError, RecursionError, DumpError) as error:
        return {}, [Problem(path.name, f"damaged, not used ({error})")]
    if not isinstance(content, dict):
        return {}, [Problem(path.name, "expected an object, not used")]
    return content, []


def _read_bytes(path: Path) -> bytes:
    try:
        return read_input_bytes(path)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _parse_json(data: bytes) -> Any:
    """Parse JSON.

    The fast parser refuses NaN and Infinity, which msprobe writes, and damaged text; Python's
    accepts them.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(_decode(data))


def _salvage_entries(path: Path, text: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return the complete entries of a file that is cut short or damaged."""
    start = _DATA.search(text)
    if start is None:
        raise DumpError(
            f'{path}: msprobe dump.json without entries: damaged before "data" begins; '
            "record it again"
        )
    try:
        content = json.loads(text[: start.start()] + '"data": {}}')
    except ValueError:
        content = {}
    decoder = json.JSONDecoder()
    entries: dict[str, Any] = {}
    problems = []
    position = start.end()
    while not _END.match(text, position):
        key = _KEY.match(text, position)
        try:
            if key is None:
                raise ValueError("no entry here")
            entries[key[1]], position = decoder.raw_decode(text, key.end())
        except (ValueError, RecursionError):
            line = text.count("\n", 0, position) + 2
            place = f"after {next(reversed(entries))}" if entries else "at the first entry"
            damage_start = key.end() if key else position
            next_entry = _NEXT_ENTRY.search(text, damage_start + 1)
            if next_entry is None:
                message = f"cut short; the complete entries before were used, {place}"
                problems.append(Problem(path.name, message, line, weakens=True))
                break
            message = f"damaged entry skipped {place}"
            problems.append(Problem(path.name, message, line, weakens=True))
            position = next_entry.start()
    return {**content, "data": entries}, problems
