"""Patterns of dotted names, and a table that finds the longest pattern that matches a name.

A pattern is a dotted path. ``{layer}`` matches a number, as a whole segment
(``layers.{layer}.mlp``) or as a part of one (``weight{expert}``); all other text is literal. A
canonical path uses the same captures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from .document import Entry, Place

_CAPTURE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9_-]|\{[a-z][a-z0-9_]*\})+")


@dataclass(frozen=True)
class Rule:
    """One line of a table: names that match ``pattern`` become ``path``."""

    pattern: str
    path: str  #: canonical, with the captures of the pattern
    place: Place

    def fill(self, numbers: Sequence[str]) -> str:
        """Return the canonical path with the numbers of the pattern's captures."""
        if not numbers:
            return self.path
        values = dict(zip(_CAPTURE.findall(self.pattern), numbers, strict=True))
        return _CAPTURE.sub(lambda capture: values[capture[1]], self.path)


@dataclass(frozen=True)
class Match:
    """A rule that matches a name's segments from some start up to ``end``."""

    rule: Rule
    end: int
    path: str  #: canonical, with numbers


@dataclass
class _Node:
    """A node of the tree of segments.

    ``captured`` maps a segment with '#' for numbers to a child.
    """

    literal: dict[str, _Node] = field(default_factory=dict)
    captured: dict[str, tuple[re.Pattern[str], _Node]] = field(default_factory=dict)
    rule: Rule | None = None


#: A rule, the end of the match, and the captured numbers.
_Candidate = tuple[Rule, int, tuple[str, ...]]


class PatternTable:
    """Patterns of one source, as a tree of segments. A search costs the depth of the name."""

    def __init__(self) -> None:
        self._root = _Node()
        self.rules: list[Rule] = []

    def add(self, pattern: Entry, path: Entry) -> None:
        """Add a pattern.

        Raises RuleError if it is malformed, or if this table already maps it to another path.
        """
        text, canonical = pattern.read_text(), path.read_text()
        _check_pattern(pattern)
        _check_pattern(path)
        _check_captures(pattern, path)
        node = self._root
        for segment in text.split("."):
            if "{" not in segment:
                node = node.literal.setdefault(segment, _Node())
            else:
                shape = _CAPTURE.sub("#", segment)
                _, node = node.captured.setdefault(shape, (_compile_segment(shape), _Node()))
        if node.rule is None:
            node.rule = Rule(text, canonical, pattern.place)
            self.rules.append(node.rule)
        elif node.rule.path != canonical:
            raise pattern.make_error(
                f"'{text}' already means '{node.rule.path}' ({node.rule.place})"
            )

    def find_longest_match(
        self, segments: Sequence[str], start: int = 0, exact: bool = False
    ) -> Match | None:
        """Return the longest match from ``start`` on; with ``exact`` it must reach the end."""
        candidate = _search(self._root, segments, start, (), exact)
        if candidate is None:
            return None
        rule, end, numbers = candidate
        return Match(rule, end, rule.fill(numbers))


def find_first_match(
    tables: Sequence[PatternTable], segments: Sequence[str], start: int = 0, exact: bool = False
) -> Match | None:
    """Return the longest match in the first table that has one."""
    for table in tables:
        match = table.find_longest_match(segments, start, exact)
        if match is not None:
            return match
    return None


def _search(
    node: _Node, segments: Sequence[str], position: int, numbers: tuple[str, ...], exact: bool
) -> _Candidate | None:
    """Return the longest match below a node; of equally long ones, a literal one."""
    longest = None
    while True:
        at_end = position == len(segments)
        if node.rule is not None and (at_end or not exact):
            longest = (node.rule, position, numbers)
        if at_end:
            return longest
        if node.captured:
            break
        child = node.literal.get(segments[position])
        if child is None:
            return longest
        node, position = child, position + 1
    for child, child_numbers in _list_children(node, segments[position], numbers):
        candidate = _search(child, segments, position + 1, child_numbers, exact)
        if candidate is not None and (longest is None or candidate[1] > longest[1]):
            longest = candidate
    return longest


def _list_children(
    node: _Node, segment: str, numbers: tuple[str, ...]
) -> list[tuple[_Node, tuple[str, ...]]]:
    """Return the children that a segment leads to, each with the numbers captured so far."""
    children = []
    if segment in node.literal:
        children.append((node.literal[segment], numbers))
    for regex, child in node.captured.values():
        match = regex.fullmatch(segment)
        if match is not None:
            children.append((child, numbers + match.groups()))
    return children


def _check_pattern(entry: Entry) -> None:
    """Raise RuleError if a pattern or path is malformed."""
    text = entry.read_text()
    for segment in text.split("."):
        if not _SEGMENT.fullmatch(segment):
            raise entry.make_error(
                f"bad pattern '{text}': '{segment}' is no segment; write letters, digits, '_', '-' "
                "and {name} for a number, joined by dots"
            )
    names = _CAPTURE.findall(text)
    if len(names) != len(set(names)):
        raise entry.make_error(f"bad pattern '{text}': the same capture twice")


def _check_captures(pattern: Entry, path: Entry) -> None:
    """Raise RuleError if pattern and path have different captures."""
    text, canonical = pattern.read_text(), path.read_text()
    pattern_captures, path_captures = _CAPTURE.findall(text), _CAPTURE.findall(canonical)
    for name in path_captures:
        if name not in pattern_captures:
            raise pattern.make_error(
                f"'{canonical}' uses {{{name}}}, which the pattern '{text}' does not capture"
            )
    for name in pattern_captures:
        if name not in path_captures:
            raise pattern.make_error(
                f"the pattern '{text}' captures {{{name}}}, which '{canonical}' does not use: "
                "different names would become one"
            )


@cache
def _compile_segment(shape: str) -> re.Pattern[str]:
    return re.compile(r"(\d+)".join(re.escape(part) for part in shape.split("#")))
