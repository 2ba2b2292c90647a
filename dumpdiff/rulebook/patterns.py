"""Patterns of dotted names, and the table that finds the longest one that a name fits.

A pattern is a dotted path. ``{layer}`` stands for a number, as a whole segment (``layers.{layer}.mlp``) or
as part of one (``weight{expert}``); everything else is meant literally. A canonical path uses the same captures.
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
    """One line of a table: names that fit ``pattern`` become ``path``."""

    pattern: str
    path: str  #: canonical, with the captures of the pattern
    place: Place

    def fill(self, numbers: Sequence[str]) -> str:
        """The canonical path with the numbers that the pattern's captures took."""
        if not numbers:
            return self.path
        values = dict(zip(_CAPTURE.findall(self.pattern), numbers, strict=True))
        return _CAPTURE.sub(lambda capture: values[capture[1]], self.path)


@dataclass(frozen=True)
class Match:
    """A rule that fits a name's segments from some start up to ``end``."""

    rule: Rule
    end: int
    path: str  #: canonical, captures filled in


@dataclass
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    captured: dict[str, tuple[re.Pattern[str], _Node]] = field(default_factory=dict)
    rule: Rule | None = None


class PatternTable:
    """Patterns of one source, as a tree of segments: finding the longest costs the depth of the name."""

    def __init__(self) -> None:
        self._root = _Node()
        self.rules: list[Rule] = []

    def add(self, pattern: Entry, path: Entry) -> None:
        """Raises RuleError for a malformed pattern or one that this table already maps elsewhere."""
        text, canonical = pattern.read_text(), path.read_text()
        _check(pattern, text)
        _check(path, canonical)
        taken, used = _CAPTURE.findall(text), _CAPTURE.findall(canonical)
        for name in used:
            if name not in taken:
                raise pattern.make_error(
                    f"'{canonical}' uses {{{name}}}, which the pattern '{text}' does not capture"
                )
        for name in taken:
            if name not in used:
                raise pattern.make_error(
                    f"the pattern '{text}' captures {{{name}}}, which '{canonical}' does not use: "
                    "different names would become one"
                )
        node = self._root
        for segment in text.split("."):
            if "{" not in segment:
                node = node.literal.setdefault(segment, _Node())
            else:
                shape = _CAPTURE.sub("#", segment)
                node = node.captured.setdefault(shape, (_segment_regex(shape), _Node()))[1]
        if node.rule is not None:
            if node.rule.path != canonical:
                raise pattern.make_error(
                    f"'{text}' already means '{node.rule.path}' ({node.rule.place})"
                )
            return
        node.rule = Rule(text, canonical, pattern.place)
        self.rules.append(node.rule)

    def find_longest_match(self, segments: Sequence[str], start: int = 0, exact: bool = False) -> Match | None:
        """The longest pattern that fits from ``start`` on; with ``exact`` it must reach the end."""
        found = _walk(self._root, segments, start, (), exact)
        if found is None:
            return None
        rule, end, numbers = found
        return Match(rule, end, rule.fill(numbers))


def find_first_match(
    tables: Sequence[PatternTable], segments: Sequence[str], start: int = 0, exact: bool = False
) -> Match | None:
    """The longest match in the first table that has one."""
    for table in tables:
        if (match := table.find_longest_match(segments, start, exact)) is not None:
            return match
    return None


def _walk(
    node: _Node, segments: Sequence[str], at: int, numbers: tuple[str, ...], exact: bool
) -> tuple[Rule, int, tuple[str, ...]] | None:
    best = None
    while True:
        if node.rule is not None and (not exact or at == len(segments)):
            best = (node.rule, at, numbers)
        if at == len(segments):
            return best
        if node.captured:
            break
        if (only := node.literal.get(segments[at])) is None:
            return best
        node, at = only, at + 1
    segment = segments[at]
    steps = [(child, numbers) for child in (node.literal.get(segment),) if child is not None]
    for regex, child in node.captured.values():
        if (fits := regex.fullmatch(segment)) is not None:
            steps.append((child, numbers + fits.groups()))
    for child, taken in steps:
        deeper = _walk(child, segments, at + 1, taken, exact)
        if deeper is not None and (best is None or deeper[1] > best[1]):
            best = deeper
    return best


def _check(entry: Entry, text: str) -> None:
    for segment in text.split("."):
        if not _SEGMENT.fullmatch(segment):
            raise entry.make_error(
                f"bad pattern '{text}': '{segment}' is no segment; write letters, digits, '_', '-' "
                "and {name} for a number, joined by dots"
            )
    names = _CAPTURE.findall(text)
    if len(names) != len(set(names)):
        raise entry.make_error(f"bad pattern '{text}': the same capture twice")


@cache
def _segment_regex(shape: str) -> re.Pattern[str]:
    return re.compile(r"(\d+)".join(re.escape(part) for part in shape.split("#")))
