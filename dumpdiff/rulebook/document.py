"""Values of a YAML file with their places, so that every error message has file and line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..model.errors import DumpError
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

#: Similarity (difflib's ratio) from which a known word is suggested in place of an unknown one.
#: It is the default of difflib.
_MIN_SIMILARITY = 0.6


@dataclass(frozen=True)
class Place:
    """The place of a rule: file and line."""

    file: str
    line: int  #: the first line is 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class RuleError(DumpError):
    """A rule file that cannot be used; the message is ``file:line: reason``."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.file, self.line, self.reason = place.file, place.line, reason


@dataclass(frozen=True)
class Entry:
    """One YAML value and its file.

    Every reader raises :class:`RuleError` if the value has another type.
    """

    file: str
    node: Any  #: yaml.Node

    @property
    def place(self) -> Place:
        """Where the value begins."""
        return Place(self.file, self.node.start_mark.line + 1)

    def make_error(self, reason: str) -> RuleError:
        """Return the error, to be raised, that this value cannot be used."""
        return RuleError(self.place, reason)

    @property
    def is_text(self) -> bool:
        """Whether the value is a scalar."""
        return isinstance(self.node, yaml.ScalarNode)

    def read_pairs(self) -> dict[Entry, Entry]:
        """Return a mapping with any keys; each key must occur once. Keys know their places too."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.make_error(
                f"expected a mapping (key: value), found {_describe_node(self.node)}"
            )
        pairs: dict[Entry, Entry] = {}
        first_places: dict[str, Place] = {}
        for key_node, value_node in self.node.value:
            key = Entry(self.file, key_node)
            text = key.read_text()
            if text in first_places:
                line = first_places[text].line
                raise key.make_error(f"'{text}' is given twice, first in line {line}")
            first_places[text] = key.place
            pairs[key] = Entry(self.file, value_node)
        return pairs

    def read_fields(
        self, allowed: Collection[str], required: Collection[str] = ()
    ) -> dict[str, Entry]:
        """Return a mapping with only ``allowed`` keys and all ``required`` keys."""
        fields: dict[str, Entry] = {}
        for key, value in self.read_pairs().items():
            name = key.node.value
            if name not in allowed:
                raise key.make_error(f"unknown key '{name}'{_suggest_word(name, allowed)}")
            fields[name] = value
        for name in required:
            if name not in fields:
                raise self.make_error(f"'{name}' is missing")
        return fields

    def read_text(self) -> str:
        """Return a scalar value as text; it is never empty."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self.make_error(f"expected a text, found {_describe_node(self.node)}")
        return str(self.node.value)

    def read_texts(self) -> list[Entry]:
        """Return the entries of one text or of a list of texts."""
        nodes = self.node.value if isinstance(self.node, yaml.SequenceNode) else [self.node]
        entries = [Entry(self.file, node) for node in nodes]
        for entry in entries:
            entry.read_text()
        return entries

    def read_rows(self) -> list[list[Entry]]:
        """Return the entries of a list of lists of texts."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.make_error(f"expected a list of lists, found {_describe_node(self.node)}")
        rows = []
        for node in self.node.value:
            row = Entry(self.file, node)
            if not isinstance(node, yaml.SequenceNode) or not node.value:
                raise row.make_error(f"expected a list of names, found {_describe_node(node)}")
            rows.append(row.read_texts())
        return rows

    def read_number(self) -> float:
        """Return a finite number of at least 0."""
        text = self.read_text()
        number = float(text) if _NUMBER.fullmatch(text) else -1.0
        if number < 0 or number == float("inf"):
            raise self.make_error(f"expected a number, 0 or more, found '{text}'")
        return number

    def read_choice(self, choices: Collection[str], concept: str) -> str:
        """Return one of the ``choices``; ``concept`` is their name in errors."""
        text = self.read_text()
        if text not in choices:
            raise self.make_error(f"unknown {concept} '{text}'{_suggest_word(text, choices)}")
        return text


def read_document(path: Path, file: str) -> Entry | None:
    """Return the top-level value of a YAML file, None if it is empty.

    ``file`` is its name in messages.

    Raises RuleError if the file is unreadable, not UTF-8 or not YAML.
    """
    try:
        text = read_input_text(path, MAX_WRITTEN_BYTES)
        node = yaml.compose(text, Loader=_LOADER)
    except OSError as error:
        raise RuleError(Place(file, 1), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RuleError(Place(file, 1), "expected YAML in UTF-8, found other bytes") from error
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        mark = getattr(error, "problem_mark", None)
        line = 1
        if mark:
            # an open bracket is reported after the last line
            line = min(mark.line, text.count("\n")) + 1
        raise RuleError(Place(file, line), f"no valid YAML: {reason}") from error
    return Entry(file, node) if node is not None else None


def parse_entry(text: str, file: str) -> Entry:
    """Return the top-level value of a YAML text that is not empty; ``file`` is for messages."""
    return Entry(file, yaml.compose(text, Loader=_LOADER))


def collect_fields(
    entries: Collection[Entry], allowed: Collection[str]
) -> Mapping[str, list[Entry]]:
    """Return the values of each allowed key over several mappings, in order."""
    fields: dict[str, list[Entry]] = {key: [] for key in allowed}
    for entry in entries:
        for key, value in entry.read_fields(allowed).items():
            fields[key].append(value)
    return fields


def _suggest_word(word: str, choices: Collection[str]) -> str:
    """Return the end of an error message: the most similar choice, or all choices."""
    similar_words = difflib.get_close_matches(word, list(choices), 1, _MIN_SIMILARITY)
    if similar_words:
        return f"; did you mean '{similar_words[0]}'?"
    return f"; expected one of {', '.join(sorted(choices))}"


def _describe_node(node: Any) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list" if node.value else "an empty list"
    return f"'{node.value}'" if node.value else "nothing"
