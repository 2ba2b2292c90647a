"""Norms that a person wrote down: numbers, names and numbers, CSV, JSON, lines of any log."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from .block import NUMBER, Block, split_by_repetition

_NUMBER = re.compile(NUMBER, re.IGNORECASE)
#: The first line that is no comment.
_FIRST_LINE = re.compile(r"^\s*[^#\s][^\n]*", re.MULTILINE)
#: The end of a number, also of nan and inf.
_NUMBER_END = re.compile(r"[\dnf][\s,;)\]]*$", re.IGNORECASE)
#: A number that is possibly wrapped as in ``tensor([0.5])``.
_WRAPPED_NUMBER = re.compile(rf"(?:tensor\()?\[?\s*({NUMBER})\s*\]?\)?", re.IGNORECASE)
_TENSOR = re.compile(r"tensor\(\s*([^,()]{1,40})[^()]{0,80}\)")
#: A parameter's name: dotted, with a last segment that frameworks use for weights.
_LEAF = r"(?:[a-z_]*(?:weight|bias)\d*|gamma|beta|embedding_table|\w*_embedding|weight[12])"
_NAMED_NUMBER = re.compile(
    rf"(?<![\w./])((?:[A-Za-z_]\w*\.)(?:\w+\.)*{_LEAF})(?![\w.]*\w)"  # the name
    r"([^0-9\n]{0,60}?(?:(?:l2|norm2|\^2|\*\*2|pow2)[^0-9\n]{0,40}?)?)"  # the text between
    rf"(?<![\w.])({NUMBER})(?![\w.]*\w)",
    re.IGNORECASE,
)
#: What every line with a parameter's name contains.
_LEAF_HINT = re.compile(r"weight|bias|gamma|beta|embedding")
_SQUARED = re.compile(
    r"squar|norm2\b|\^\s*2|\*\*\s*2|norm_sq|sq_norm|pow2|sumsq|sum_of_sq", re.IGNORECASE
)
#: Longer lists, in lines, are not parsed: they are logs.
_MAX_LINES = 1_000_000
#: A table's header is at most this many characters wide.
_MAX_HEADER_WIDTH = 10_000
#: JSON mappings are searched for norms to this depth.
_MAX_DEPTH = 3
#: Longer steps are no steps, but other numbers.
_MAX_STEP_DIGITS = 9
_NORM_KEYS = ("local_norm", "local norm", "grad_norm", "grad norm", "norm", "l2", "value")
_NAME_KEYS = ("name", "param", "parameter", "key", "weight")
_STEP_KEYS = ("step", "iteration")

#: The norms of one or several steps, and whether the text says that they are squares.
ParsedList: TypeAlias = tuple[list[Block], bool | None]


def _detect_squares(text: str) -> bool | None:
    """Return True if text near a number says that it is a square, else None."""
    return True if _SQUARED.search(text) else None


def parse_named_lines(text: str) -> ParsedList | None:
    """Parse lines of any log with a parameter's name followed by a number.

    Return None unless at least two parameters are found.
    """
    if _LEAF_HINT.search(text) is None:
        return None
    lines = "\n".join(line for line in text.split("\n") if _LEAF_HINT.search(line))
    pairs: list[tuple[str, str]] = []
    texts_between: set[str] = set()
    for match in _NAMED_NUMBER.finditer(lines):
        pairs.append((match[1], match[3]))
        texts_between.add(match[2])
    blocks = list(split_by_repetition(pairs))
    if not blocks or len(blocks[0].names) < 2:
        return None
    return blocks, _detect_squares(" ".join(texts_between))


def parse_list(text: str) -> ParsedList | None:
    """Parse numbers, or a name and a number on every line; None if the text is anything else.

    A line may contain several numbers, separated by blanks or commas, with or without brackets.
    Lines with ``#`` are comments.
    """
    first_line = _FIRST_LINE.search(text)
    if first_line is None or _NUMBER_END.search(first_line[0]) is None:
        return None  # this excludes most logs before all of their text is parsed
    lines = _strip_comments(text)
    if not lines or len(lines) > _MAX_LINES:
        return None
    numbers = _split_numbers(" ".join(lines))
    if numbers:
        return [Block(tuple(numbers))], None
    texts_by_name: dict[str, str] = {}
    for line in lines:
        pair = _split_line(line)
        if pair is None or pair[0] in texts_by_name:
            return None
        texts_by_name[pair[0]] = pair[1]
    return [Block(tuple(texts_by_name.values()), tuple(texts_by_name))], None


def _strip_comments(text: str) -> list[str]:
    """Return the lines that are neither empty nor comments."""
    stripped_lines = [line.strip() for line in text.splitlines()]
    return [line for line in stripped_lines if line and not line.startswith("#")]


def _split_numbers(text: str) -> list[str]:
    """Return the numbers of a text; empty if it contains anything else."""
    unwrapped_text = _TENSOR.sub(r"\1", text)
    words = re.split(r"[\s,;\[\]()]+", unwrapped_text)
    numbers = [word for word in words if word]
    for number in numbers:
        if _NUMBER.fullmatch(number) is None:
            return []
    return numbers


def _split_line(line: str) -> tuple[str, str] | None:
    """Return the name and the number of a line; None if it is anything else."""
    name, _, text = re.sub(r"\s*[:=,;\t]\s*|\s+", " ", line).rpartition(" ")
    name = name.strip(" '\"")
    match = _WRAPPED_NUMBER.fullmatch(text)
    if match is None or not name or " " in name or _NUMBER.fullmatch(name):
        return None
    return name, match[1]


def parse_table(text: str) -> ParsedList | None:
    """Parse a CSV with a header: a column of norms, and optional columns of names and of steps.

    Return None if the text is no such table.
    """
    text = text.lstrip("\ufeff \n")
    header = text.partition("\n")[0]
    delimiter = next((mark for mark in ",\t;" if mark in header), ",")
    columns = [cell.strip().lower() for cell in header.split(delimiter)]
    norm_column = _find_column(columns, _NORM_KEYS)
    if norm_column is None or len(header) > _MAX_HEADER_WIDTH:
        return None
    other_columns = list(columns)
    other_columns[norm_column] = ""
    name_column = _find_column(other_columns, _NAME_KEYS)
    step_column = next((i for i, cell in enumerate(columns) if cell in _STEP_KEYS), None)
    last_column = max(norm_column, name_column or 0, step_column or 0)
    pairs_by_step: dict[str, list[tuple[str, str]]] = {}  #: (name, norm) pairs
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        next(rows)
        for row in rows:
            if not row:
                continue
            if len(row) <= last_column or not _NUMBER.fullmatch(row[norm_column].strip()):
                return None
            name = "" if name_column is None else row[name_column].strip()
            step = "" if step_column is None else row[step_column].strip()
            pairs_by_step.setdefault(step, []).append((name, row[norm_column].strip()))
    except csv.Error:
        return None
    blocks = []
    step_numbers = _parse_steps(pairs_by_step)
    for step_number, pairs in zip(step_numbers, pairs_by_step.values(), strict=True):
        names = () if name_column is None else tuple(name for name, _ in pairs)
        blocks.append(Block(tuple(norm for _, norm in pairs), names, step=step_number))
    return (blocks, _detect_squares(columns[norm_column])) if blocks else None


def _parse_steps(steps: Iterable[str]) -> list[int | None]:
    """Return steps as numbers from 1, where a table may count from 0; None for no number."""
    numbers = [_parse_step(step) for step in steps]
    shift = 1 if 0 in numbers else 0
    for index, number in enumerate(numbers):
        if number is not None:
            numbers[index] = number + shift
    return numbers


def _parse_step(text: str) -> int | None:
    if text.isdecimal() and len(text) <= _MAX_STEP_DIGITS:
        return int(text)
    return None


def _find_column(columns: list[str], keys: Iterable[str]) -> int | None:
    """Return the first column that contains a key; earlier keys are preferred."""
    for key in keys:
        for number, column in enumerate(columns):
            if key in column:
                return number
    return None


def parse_json(text: str) -> ParsedList | None:
    """Parse JSON: a list of numbers, a mapping of names to numbers, or a list of mappings.

    These may be inside an outer mapping. Return None if the text is anything else.
    """
    try:
        document = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    located_norms = _find_norms(document, 0)
    if located_norms is None:
        return None
    block, key_path = located_norms
    return [block], _detect_squares(key_path)


def _find_norms(value: Any, depth: int) -> tuple[Block, str] | None:
    """Return the norms in a JSON value, and the keys that lead to them."""
    if isinstance(value, list) and value:
        return _parse_json_list(value)
    if not isinstance(value, dict) or not value:
        return None
    numbers = {name: str(number) for name, number in value.items() if _is_number(number)}
    if len(numbers) == len(value):
        return Block(tuple(numbers.values()), tuple(numbers)), ""
    if depth >= _MAX_DEPTH:
        return None
    for name, child in value.items():
        located_norms = _find_norms(child, depth + 1)
        if located_norms is not None:
            block, key_path = located_norms
            return block, f"{name} {key_path}"
    return None


def _parse_json_list(values: list[Any]) -> tuple[Block, str] | None:
    """Return the norms of a list of numbers, pairs or mappings, and the key of the first number."""
    if all(_is_number(value) for value in values):
        return Block(tuple(map(str, values))), ""
    names, texts, keys = [], [], []
    for value in values:
        entry = _parse_json_pair(value) if isinstance(value, list) else _parse_json_mapping(value)
        if entry is None:
            return None
        names.append(entry[0])
        texts.append(entry[1])
        keys.append(entry[2])
    return Block(tuple(texts), tuple(names)), keys[0]


def _parse_json_pair(value: list[Any]) -> tuple[str, str, str] | None:
    """Return the name and number of a pair, and '' for the number's key."""
    if len(value) != 2:
        return None
    name, number = value
    if _is_number(name) or not _is_number(number):
        return None
    return str(name), str(number), ""


def _parse_json_mapping(value: Any) -> tuple[str, str, str] | None:
    """Return name, number and the number's key of a mapping like ``{"name": ..., "norm": ...}``."""
    if not isinstance(value, dict):
        return None
    number_keys = [key for key in _match_keys(value, _NORM_KEYS) if _is_number(value[key])]
    if not number_keys:
        return None
    number_key = number_keys[0]
    for name_key in _match_keys(value, _NAME_KEYS):
        if isinstance(value[name_key], str) and name_key not in number_keys:
            return value[name_key], str(value[number_key]), number_key
    return None


def _match_keys(mapping: dict[str, Any], wanted_keys: Iterable[str]) -> list[str]:
    """Return the keys that contain a wanted key, in the order of the wanted keys."""
    return [key for wanted_key in wanted_keys for key in mapping if wanted_key in key.lower()]


def _is_number(value: Any) -> bool:
    """Whether a JSON value is a number, which is parsed as text here."""
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None
