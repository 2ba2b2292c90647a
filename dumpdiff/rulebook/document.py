"""Rule files as values that know where they stand: YAML read so that every complaint has a file and a line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..model.errors import DumpError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Place:
    """Where a rule is written."""

    file: str
    line: int  #: 1 is the first

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class RuleError(DumpError):
    """A rule file that cannot be used; the message is ``file:line: reason``."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.file, self.line, self.reason = place.file, place.line, reason


@dataclass(frozen=True)
class Entry:
    """One YAML value and its file. Every accessor raises :class:`RuleError` when the value is of another type."""

    file: str
    node: Any  #: yaml.Node

    @property
    def place(self) -> Place:
        """Where the value begins."""
        return Place(self.file, self.node.start_mark.line + 1)

    def make_error(self, reason: str) -> RuleError:
        """The complaint, to be raised, that this value cannot be used."""
        return RuleError(self.place, reason)

    def read_pairs(self) -> dict[Entry, Entry]:
        """A mapping with any keys, each once; the keys know their places too."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.make_error(f"expected a mapping (key: value), found {_spoken(self.node)}")
        pairs: dict[Entry, Entry] = {}
        seen: dict[str, Place] = {}
        for key_node, value_node in self.node.value:
            key = Entry(self.file, key_node)
            if (text := key.read_text()) in seen:
                raise key.make_error(f"'{text}' is given twice, first in line {seen[text].line}")
            seen[text] = key.place
            pairs[key] = Entry(self.file, value_node)
        return pairs

    def read_fields(self, known: Collection[str], required: Collection[str] = ()) -> dict[str, Entry]:
        """A mapping with only the ``known`` keys, and with all the ``required`` ones."""
        pairs = self.read_pairs()
        for key in pairs:
            if key.node.value not in known:
                raise key.make_error(f"unknown key '{key.node.value}'{_near(key.node.value, known)}")
        found = {key.node.value: value for key, value in pairs.items()}
        for name in required:
            if name not in found:
                raise self.make_error(f"'{name}' is missing")
        return found

    def read_text(self) -> str:
        """A plain value as text, never empty."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self.make_error(f"expected a text, found {_spoken(self.node)}")
        return str(self.node.value)

    def read_texts(self) -> list[Entry]:
        """One text or a list of texts, each with its place."""
        nodes = self.node.value if isinstance(self.node, yaml.SequenceNode) else [self.node]
        entries = [Entry(self.file, node) for node in nodes]
        for entry in entries:
            entry.read_text()
        return entries

    def read_rows(self) -> list[list[Entry]]:
        """A list of lists of texts."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.make_error(f"expected a list of lists, found {_spoken(self.node)}")
        rows = []
        for node in self.node.value:
            if not isinstance(node, yaml.SequenceNode) or not node.value:
                raise Entry(self.file, node).make_error(
                    f"expected a list of names, found {_spoken(node)}"
                )
            rows.append(Entry(self.file, node).read_texts())
        return rows

    def read_number(self) -> float:
        """A finite number, at least 0."""
        text = self.read_text()
        if not _NUMBER.fullmatch(text) or float(text) < 0 or float(text) == float("inf"):
            raise self.make_error(f"expected a number, 0 or more, found '{text}'")
        return float(text)

    def read_choice(self, allowed: Collection[str], what: str) -> str:
        """One of the ``allowed`` words."""
        text = self.read_text()
        if text not in allowed:
            raise self.make_error(f"unknown {what} '{text}'{_near(text, allowed)}")
        return text


def read_document(path: Path, file: str) -> Entry | None:
    """The top value of a rule file, None if it is empty; ``file`` is its name in messages.

    Raises RuleError when the file is unreadable, no UTF-8 or no YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=_LOADER)
    except OSError as error:
        raise RuleError(Place(file, 1), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RuleError(Place(file, 1), "expected YAML in UTF-8, found other bytes") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        line = (
            min(mark.line, text.count("\n")) + 1 if mark else 1
        )  # an open bracket is missed after the last line
        raise RuleError(Place(file, line), f"no valid YAML: {reason}") from error
    return Entry(file, node) if node is not None else None


def _near(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1, 0.6)
    return (
        f"; did you mean '{close[0]}'?"
        if close
        else f"; expected one of {', '.join(sorted(known))}"
    )


def _spoken(node: Any) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list" if node.value else "an empty list"
    return f"'{node.value}'" if node.value else "nothing"


def collect_fields(entries: Collection[Entry], known: Collection[str]) -> Mapping[str, list[Entry]]:
    """The values of each known key over several mappings, in order."""
    found: dict[str, list[Entry]] = {key: [] for key in known}
    for entry in entries:
        for key, value in entry.read_fields(known).items():
            found[key].append(value)
    return found
