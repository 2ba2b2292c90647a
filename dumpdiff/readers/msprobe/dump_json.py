"""Read the JSON files of an msprobe dump (1.0 to 26.2): dump.json, stack.json and construct.json.

A dump.json as msprobe prints it is parsed in blocks of entries, any other file at once; from a
damaged dump.json the complete entries are salvaged one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

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

#: How msprobe prints the start of the first entry and of every further one.
_DATA_KEY, _FIRST_ENTRY = b'"data": {', b'"data": {\n  "'
_ENTRY_END, _FURTHER_ENTRY = b"\n  }", b'\n  },\n  "'
#: Bytes that are parsed at once: what is made of them is freed while it is in the cache of a core.
#: 78 MB take 0.33 s so, and 0.58 s at once, and 20 MB of memory instead of 200.
_BLOCK_SIZE = 1 << 17

Json = dict[str, Any]
_Collected = TypeVar("_Collected")


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a dump.json or debug.json of msprobe."""
    return _HEAD.match(head) is not None and b'"data"' in head[:HEAD_SIZE]


def holds_saved_values(head: bytes) -> bool:
    """Whether a file that begins like this is a debug.json: values saved by hand, not calls."""
    return _DEBUG_LEVEL.search(head) is not None


def read_dump(path: Path) -> tuple[Json, Json, list[Problem]]:
    """Return the header, the entries in order, and the problems (lost entries) of a dump.json.

    Raises DumpError if no entry can be read.
    """
    return _parse_dump(path, _read_bytes(path))


def read_entries(
    path: Path, collect: Callable[[Json, Iterable[bytes | Json]], _Collected]
) -> tuple[Json, _Collected, list[Problem]]:
    """Return the header, what ``collect`` keeps of the entries, and the problems of a dump.json.

    ``collect`` gets the header and the entries in order, some at a time: as text that
    :func:`parse_entries` parses, or parsed. It is called again if the file turns out to be damaged,
    which is when it raises ValueError. Raises DumpError if no entry can be read.
    """
    data = _read_bytes(path)
    start = data.find(_FIRST_ENTRY)
    if start >= 0:
        try:
            header = _parse_header(data[:start])
            blocks = _iterate_blocks(data, start + len(_DATA_KEY))
            return header, collect(header, blocks), []
        except (ValueError, RecursionError):
            pass  # it is damaged, or printed in another way
    header, entries, problems = _parse_dump(path, data)
    del data  # before the tables need memory
    return header, collect(header, [entries]), problems


def _parse_header(start: bytes) -> Json:
    """Parse what is before the entries. Raises ValueError if it is no object."""
    header = parse_json(start + _DATA_KEY + b"}}")
    if not isinstance(header, dict):
        raise ValueError("expected an object")
    del header["data"]
    return header


def parse_entries(block: bytes) -> Json:
    """Parse the text of some entries.

    Raises ValueError if they are not printed as msprobe does it: a block that does not end between
    two entries is no JSON, because its braces do not match.
    """
    entries: Json = parse_json(b"{%b}" % block)
    return entries


def _iterate_blocks(data: bytes, start: int) -> Iterator[bytes]:
    """Yield the text of the entries from ``start`` on, some at a time."""
    while (position := data.find(_FURTHER_ENTRY, start + _BLOCK_SIZE)) >= 0:
        end = position + len(_ENTRY_END)
        yield data[start:end]
        start = end + 1  # after the comma
    block = data[start:]
    for _ in range(2):  # the braces that close the entries and the file
        block = block.rstrip()
        if not block.endswith(b"}"):
            raise ValueError("the file is cut short")
        block = block[:-1]
    yield block


def _parse_dump(path: Path, data: bytes) -> tuple[Json, Json, list[Problem]]:
    """Return what :func:`read_dump` does."""
    problems: list[Problem] = []
    try:
        content = parse_json(data)
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


def read_side_file(path: Path) -> tuple[Json, list[Problem]]:
    """Return the object in stack.json or construct.json; {} if the file is missing or damaged.

    A damaged file is reported as a problem.
    """
    if not path.is_file():
        return {}, []
    try:
        content = parse_json(_read_bytes(path))
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


def parse_json(data: bytes) -> Any:
    """Parse JSON.

    The fast parser refuses NaN and Infinity, which msprobe writes, and damaged text; Python's
    accepts them.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(_decode(data))


def _salvage_entries(path: Path, text: str) -> tuple[Json, list[Problem]]:
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
    entries: Json = {}
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
