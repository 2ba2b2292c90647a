"""The kind of a configuration file, by keys that only this kind has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import yaml

from ..rulebook.files import find_shipped_root
from .settings import Framework

_LEAST = 3  #: keys that are proof, if a kind does not say how many


@dataclass(frozen=True)
class FileKind:
    """One entry of ``rules/settings_files.yaml``, where the fields are explained."""

    name: str
    keys: tuple[str, ...]
    least: int = _LEAST
    framework: Framework | None = None  #: None: such a file holds no settings of a training
    advice: str = ""
    any_of: tuple[str, ...] = ()  #: at least one of these keys is there as well
    none_of: tuple[str, ...] = ()  #: and none of these

    def matches(self, names: frozenset[str]) -> bool:
        """Return whether a file with these dotted names is proven to be of this kind."""
        if not names.isdisjoint(self.none_of):
            return False
        if self.any_of and names.isdisjoint(self.any_of):
            return False
        return self.count_keys(names) >= self.least

    def count_keys(self, names: frozenset[str]) -> int:
        """Return how many of the keys of this kind are among the names."""
        return sum(_has_key(key, names) for key in self.keys)


def _has_key(key: str, names: frozenset[str]) -> bool:
    if "*" not in key:
        return key in names
    return any(fnmatchcase(name, key) for name in names)


def find_kind(keys: Iterable[str]) -> FileKind | None:
    """Return the kind of a file with these dotted keys, None if nothing proves one."""
    names: set[str] = set()
    for key in keys:
        name = key
        while name and name not in names:
            names.add(name)
            name = name.rpartition(".")[0]
    frozen_names = frozenset(names)
    for kind in load_kinds():
        if kind.matches(frozen_names):
            return kind
    return None


@cache
def load_kinds() -> tuple[FileKind, ...]:
    """Read the shipped kinds once, in the order in which they are tried."""
    with (find_shipped_root() / "settings_files.yaml").open(encoding="utf-8") as stream:
        entries: list[dict[str, Any]] = yaml.safe_load(stream)["kinds"]
    return tuple(map(_build_kind, entries))


def _build_kind(entry: dict[str, Any]) -> FileKind:
    return FileKind(
        name=entry["name"],
        keys=tuple(entry["keys"]),
        least=entry.get("least", _LEAST),
        framework=entry.get("framework"),
        advice=entry.get("advice", ""),
        any_of=tuple(entry.get("with", ())),
        none_of=tuple(entry.get("without", ())),
    )
