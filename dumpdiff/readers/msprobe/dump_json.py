"""The JSON files of an msprobe dump: read at once, or entry by entry where one is damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson

from ...model.errors import DumpError
from ...model.trace import Problem

_HEAD = re.compile(rb'\s*\{\s*"(?:task|level|framework|dump_data_dir|data)"\s*:')
_DEBUG = re.compile(rb'"level"\s*:\s*"debug"')  #: values saved by hand: no calls
_DATA = re.compile(r'"data"\s*:\s*\{')
_KEY = re.compile(r'[\s,]*"((?:[^"\\]|\\.)*)"\s*:\s*')
_NEXT_ENTRY = re.compile(r'^  "', re.MULTILINE)  #: the writer indents by one; entries are two deep
_END = re.compile(r"\s*\}")


def is_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a dump.json of msprobe."""
    return _HEAD.match(head) is not None and b'"data"' in head and not _DEBUG.search(head)


def read_dump(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Header, entries in order, and what was lost. Raises DumpError if there is no entry to be had."""
    text = _text(path)
    problems: list[Problem] = []
    try:
        content = _parsed(text)
    except RecursionError:
        raise DumpError(f"{path}: JSON nested too deeply for a dump.json") from None
    except ValueError:
        content, problems = _salvage(path, text)
    data = content.pop("data", None) if isinstance(content, dict) else None
    if not isinstance(data, dict):
        raise DumpError(
            f'{path}: expected msprobe\'s dump.json with an object "data"; record it again'
        )
    return content, data, problems


def read_side(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """stack.json or construct.json: {} if it does not exist; a damaged one is a problem and {}."""
    if not path.is_file():
        return {}, []
    try:
        content = _parsed(_text(path))
    except (ValueError, RecursionError, DumpError) as error:
        return {}, [Problem(path.name, f"damaged, not used ({error})")]
    return (
        (content, [])
        if isinstance(content, dict)
        else ({}, [Problem(path.name, "expected an object, not used")])
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None


def _parsed(text: str) -> Any:
    """What the text says. The fast parser refuses NaN and Infinity, which msprobe writes; Python's own takes them."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def _salvage(path: Path, text: str) -> tuple[dict[str, Any], list[Problem]]:
    """The complete entries of a file that is cut short or damaged."""
    start = _DATA.search(text)
    if start is None:
        raise DumpError(
            f'{path}: msprobe dump.json without entries: damaged before "data" begins; record it again'
        )
    try:
        content = json.loads(text[: start.start()] + '"data": {}}')
    except ValueError:
        content = {}
    decoder = json.JSONDecoder()
    data: dict[str, Any] = {}
    problems = []
    position = start.end()
    while not _END.match(text, position):
        key = _KEY.match(text, position)
        try:
            if key is None:
                raise ValueError("no entry here")
            data[key[1]], position = decoder.raw_decode(text, key.end())
        except (ValueError, RecursionError):
            line = text.count("\n", 0, position) + 2
            after = f"after {next(reversed(data))}" if data else "at the first entry"
            following = _NEXT_ENTRY.search(text, (key.end() if key else position) + 1)
            what = (
                "damaged entry skipped"
                if following
                else "cut short; the complete entries before were used,"
            )
            problems.append(Problem(path.name, f"{what} {after}", line))
            if following is None:
                break
            position = following.start()
    return {**content, "data": data}, problems
