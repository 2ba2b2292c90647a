"""Norms that somebody wrote down: bare numbers, names and numbers, CSV, JSON; lines of a log that name a parameter."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from .block import NUMBER, Block, by_turns

_NUMBER = re.compile(NUMBER, re.IGNORECASE)
_FIRST = re.compile(r"^\s*[^#\s][^\n]*", re.MULTILINE)  #: the first line that is no comment
_END = re.compile(r"[\dnf][\s,;)\]]*$", re.IGNORECASE)  #: of a number, also nan and inf
_ONLY = re.compile(rf"(?:tensor\()?\[?\s*({NUMBER})\s*\]?\)?", re.IGNORECASE)
#: A parameter's name: dotted, with a last segment that frameworks give to weights.
_LEAF = r"(?:[a-z_]*(?:weight|bias)\d*|gamma|beta|embedding_table|\w*_embedding|weight[12])"
_NAMED = re.compile(
    rf"(?<![\w./])((?:[A-Za-z_]\w*\.)(?:\w+\.)*{_LEAF})(?![\w.]*\w)"  # the name
    rf"([^0-9\n]{{0,60}}?(?:(?:l2|norm2|\^2|\*\*2|pow2)[^0-9\n]{{0,40}}?)?)(?<![\w.])({NUMBER})(?![\w.]*\w)",
    re.IGNORECASE,
)
_SIGN = re.compile(
    r"weight|bias|gamma|beta|embedding"
)  #: what a line with a parameter's name holds
_SQUARED = re.compile(
    r"squar|norm2\b|\^\s*2|\*\*\s*2|norm_sq|sq_norm|pow2|sumsq|sum_of_sq", re.IGNORECASE
)
_LONGEST = 1_000_000  #: values of one list
_WIDEST = 10_000  #: characters of a table's header
_NORM_KEYS = ("local_norm", "local norm", "grad_norm", "grad norm", "norm", "l2", "value")
_NAME_KEYS = ("name", "param", "parameter", "key", "weight")
_STEP_KEYS = ("step", "iteration")

#: The norms of one step or of several, and whether the words beside them say that they are squares.
Listed: TypeAlias = tuple[list[Block], bool | None]


def _says_squared(words: str) -> bool | None:
    """Whether words beside a number say that the square is meant; None if they do not."""
    return True if _SQUARED.search(words) else None


def named_lines(text: str) -> Listed | None:
    """Lines of any log that hold a parameter's name and then a number; None if no two parameters are named so."""
    found: list[tuple[str, str]] = []
    words: set[str] = set()
    if _SIGN.search(text) is None:
        return None
    lines = "\n".join(line for line in text.split("\n") if _SIGN.search(line))
    for match in _NAMED.finditer(lines):
        found.append((match[1], match[3]))
        words.add(match[2])
    blocks = list(by_turns(iter(found)))
    return (blocks, _says_squared(" ".join(words))) if blocks and len(blocks[0].names) > 1 else None


def plain_list(text: str) -> Listed | None:
    """Numbers alone, or a name and a number on every line; None if the text is anything else.

    A number's line may hold several, with blanks or commas between, in brackets or not; lines with ``#`` are comments.
    """
    first = _FIRST.search(text)
    if first is None or _END.search(first[0]) is None:
        return None  # most logs end here, before all of their text is looked at
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or len(lines) > _LONGEST:
        return None
    bare = re.sub(r"tensor\(\s*([^,()]{1,40})[^()]{0,80}\)", r"\1", " ".join(lines))
    parts = [part for part in re.split(r"[\s,;\[\]()]+", bare) if part]
    if parts and all(_NUMBER.fullmatch(part) for part in parts):
        return [Block(tuple(parts))], None
    found = [_two(line) for line in lines]
    names = [pair[0] for pair in found if pair is not None]
    if len(names) < len(lines) or len(set(names)) < len(names):
        return None
    return [Block(tuple(pair[1] for pair in found if pair is not None), tuple(names))], None


def _two(line: str) -> tuple[str, str] | None:
    """A line's name and number."""
    name, _, text = re.sub(r"\s*[:=,;\t]\s*|\s+", " ", line).rpartition(" ")
    match = _ONLY.fullmatch(text)
    name = name.strip(" '\"")
    return (
        (name, match[1])
        if match and name and " " not in name and not _NUMBER.fullmatch(name)
        else None
    )


def table(text: str) -> Listed | None:
    """A CSV with a header: a column of norms, maybe one of names, maybe one of steps; None if it is none."""
    text = text.lstrip("\ufeff \n")
    first = text.partition("\n")[0]
    delimiter = next((mark for mark in ",\t;" if mark in first), ",")
    head = [cell.strip().lower() for cell in first.split(delimiter)]
    at = _column(head, _NORM_KEYS)
    if at is None or len(first) > _WIDEST:
        return None
    name = _column([cell if i != at else "" for i, cell in enumerate(head)], _NAME_KEYS)
    step = next((i for i, cell in enumerate(head) if cell in _STEP_KEYS), None)
    steps: dict[str, list[tuple[str, str]]] = {}  #: of each step names and norms
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        next(rows)
        for row in filter(None, rows):
            if (
                len(row) <= max(at, name or 0, step or 0)
                or _NUMBER.fullmatch(row[at].strip()) is None
            ):
                return None
            of = steps.setdefault(row[step].strip() if step is not None else "", [])
            of.append((row[name].strip() if name is not None else "", row[at].strip()))
    except csv.Error:
        return None
    blocks = [
        Block(
            tuple(norm for _, norm in of),
            tuple(label for label, _ in of) if name is not None else (),
            step=number,
        )
        for number, of in zip(_counted(steps), steps.values(), strict=True)
    ]
    return (blocks, _says_squared(head[at])) if blocks else None


def _counted(steps: Iterable[str]) -> list[int | None]:
    """Steps as numbers from 1, where a table may count from 0; None for those that are no numbers."""
    numbers = [int(step) if step.isdecimal() and len(step) < 10 else None for step in steps]
    first = 1 if 0 in numbers else 0
    return [None if number is None else number + first for number in numbers]


def _column(head: list[str], keys: Iterable[str]) -> int | None:
    for key in keys:
        for at, cell in enumerate(head):
            if key in cell:
                return at
    return None


def document(text: str) -> Listed | None:
    """A JSON list of numbers, a mapping of names to numbers, or a list of mappings; maybe inside an outer mapping."""
    try:
        said = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    found = _norms_in(said, 0)
    return None if found is None else ([found[0]], _says_squared(found[1]))


def _norms_in(said: Any, depth: int) -> tuple[Block, str] | None:
    """The norms in a document, and the words that lead to them."""
    if isinstance(said, list) and said:
        if all(_is_number(value) for value in said):
            return Block(tuple(map(str, said))), ""
        pairs = list(filter(None, map(_pair, said)))
        if len(pairs) == len(said):
            return Block(
                tuple(text for _, text, _ in pairs), tuple(name for name, _, _ in pairs)
            ), pairs[0][2]
    if isinstance(said, dict) and said:
        numbers = {name: str(value) for name, value in said.items() if _is_number(value)}
        if len(numbers) == len(said):
            return Block(tuple(numbers.values()), tuple(numbers)), ""
        for name, value in said.items() if depth < 3 else ():
            if (
                isinstance(value, (list, dict))
                and (found := _norms_in(value, depth + 1)) is not None
            ):
                return found[0], f"{name} {found[1]}"
    return None


def _pair(said: Any) -> tuple[str, str, str] | None:
    """Name, number and the number's key, of a mapping or of a pair."""
    if (
        isinstance(said, list)
        and len(said) == 2
        and not _is_number(said[0])
        and _is_number(said[1])
    ):
        return str(said[0]), str(said[1]), ""
    if not isinstance(said, dict):
        return None
    numbers = [key for key in _keys(said, _NORM_KEYS) if _is_number(said[key])]
    names = [
        key for key in _keys(said, _NAME_KEYS) if isinstance(said[key], str) and key not in numbers
    ]
    return (said[names[0]], str(said[numbers[0]]), numbers[0]) if names and numbers else None


def _keys(said: dict[str, Any], keys: Iterable[str]) -> Iterator[str]:
    return (name for key in keys for name in said if key in name.lower())


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None
