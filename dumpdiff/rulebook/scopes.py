"""Module paths and parameter names of every naming family, onto one canonical path.

Names are matched from the first repeated block on (``layers.{layer}``, ``h.{layer}``, ...), so wrappers in
front of it do not matter. Below the block, the longest pattern wins and what follows it is kept as it is:
``layers.0.self_attn.something`` becomes ``layers.0.attention.something``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from .document import Entry, Place
from .names import split_segments
from .patterns import Match, PatternTable, Rule, find_first_match

_SETTLE = 8  # rewrites of one path; a shipped rule needs at most three


@dataclass(frozen=True)
class Reading:
    """What a name became (``''``: nothing known), and the rules that did it."""

    path: str = ""
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class _Tables:
    """The patterns of one layer of rule files: the shipped ones, or one file given with ``--rules``."""

    layers: PatternTable
    block_modules: PatternTable
    block_parameters: PatternTable
    model_modules: PatternTable
    model_parameters: PatternTable


class ScopeRules:
    """All scope rules; later sources are asked first.

    ``sources`` holds one list of ``scopes:`` sections per source, the shipped ones first.
    """

    def __init__(self, sources: Sequence[Sequence[Entry]]) -> None:
        self._wrappers: set[str] = set()
        self._prefixes: dict[str, str] = {}
        self._leaves: dict[str, str] = {}
        self._settled: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[Rule, ...]]] = {}
        tables = [self._read(source) for source in sources]
        tables.reverse()
        self._layers = [table.layers for table in tables]
        self._block_modules = [table.block_modules for table in tables]
        self._block_parameters = [table.block_parameters for table in tables]
        self._model_modules = [table.model_modules for table in tables]
        self._model_parameters = [table.model_parameters for table in tables]

    @property
    def rules(self) -> list[Rule]:
        """Every pattern, those asked first first."""
        groups = zip(
            self._layers, self._block_modules, self._block_parameters, self._model_modules, self._model_parameters,
            strict=True,
        )  # fmt: skip
        return [rule for tables in groups for table in tables for rule in table.rules]

    def resolve_scope(self, name: str) -> Reading:
        """Canonical path of a module, from its path or from an operator's full name in graph mode."""
        path = self._unwrapped(name)
        for start in range(len(path)):
            if (match := find_first_match(self._model_modules, path, start, exact=True)) is not None:
                return self._reading(path[:start], match.path, (match.rule,))
            if (layer := find_first_match(self._layers, path, start)) is not None:
                rest, rules = self._module(path[layer.end :])
                return self._reading(path[:start], _join(layer.path, *rest), (layer.rule, *rules))
        return Reading()

    def resolve_parameter(self, name: str) -> Reading:
        """Canonical name of a parameter, of its gradient or of its optimizer state."""
        path = self._unwrapped(name)
        for start in range(len(path)):
            if (match := find_first_match(self._model_parameters, path, start, exact=True)) is not None:
                return self._reading(path[:start], match.path, (match.rule,))
            module, leaf = path[:-1], path[-1]
            if start < len(module) and (
                match := find_first_match(self._model_modules, module, start, exact=True)
            ):
                return self._reading(
                    path[:start], _join(match.path, self._leaf(leaf)), (match.rule,)
                )
            if (layer := find_first_match(self._layers, module, start)) is not None:
                rest, rules = self._block_parameter(path[layer.end :])
                return self._reading(path[:start], _join(layer.path, *rest), (layer.rule, *rules))
        return Reading()

    def _block_parameter(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Rule, ...]]:
        whole = find_first_match(self._block_parameters, path, exact=True)
        if whole is not None:
            return tuple(whole.path.split(".")), (whole.rule,)
        module, rules = self._module(path[:-1])
        whole = find_first_match(self._block_parameters, (*module, path[-1]), exact=True)
        if whole is not None:
            return tuple(whole.path.split(".")), (*rules, whole.rule)
        return (*module, self._leaf(path[-1])), rules

    def _module(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Rule, ...]]:
        """A path below a block; looked up once for all the layers that have it."""
        if (settled := self._settled.get(path)) is None:
            settled = self._settled[path] = self._settle(path)
        return settled

    def _settle(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Rule, ...]]:
        """Rewritten until nothing changes, so that a canonical path is its own."""
        rules: list[Rule] = []
        for _ in range(_SETTLE):
            match: Match | None = find_first_match(self._block_modules, path)
            if match is None:
                break
            rewritten = (*match.path.split("."), *path[match.end :])
            if rewritten == path and rules:
                break
            rules.append(match.rule)
            if rewritten == path:
                break
            path = rewritten
        return path, tuple(rules)

    def _reading(self, front: Iterable[str], path: str, rules: tuple[Rule, ...]) -> Reading:
        named = dict.fromkeys(
            self._prefixes[segment] for segment in front if segment in self._prefixes
        )
        return Reading(_join(*named, path), rules)

    def _unwrapped(self, name: str) -> tuple[str, ...]:
        return tuple(segment for segment in split_segments(name) if segment not in self._wrappers)

    def _leaf(self, leaf: str) -> str:
        return self._leaves.get(leaf, leaf)

    def _read(self, sections: Sequence[Entry]) -> _Tables:
        tables = _Tables(
            PatternTable(), PatternTable(), PatternTable(), PatternTable(), PatternTable()
        )
        words: dict[str, tuple[str, Place]] = {}
        for section in sections:
            fields = section.read_fields(("wrappers", "prefixes", "leaves", "layers", "block", "model"))
            if "wrappers" in fields:
                self._wrappers.update(entry.read_text() for entry in fields["wrappers"].read_texts())
            for field, mapping in (("prefixes", self._prefixes), ("leaves", self._leaves)):
                if field in fields:
                    _read_words(fields[field], mapping, words)
            if "layers" in fields:
                _read_patterns(fields["layers"], tables.layers)
            for field, modules, parameters in (
                ("block", tables.block_modules, tables.block_parameters),
                ("model", tables.model_modules, tables.model_parameters),
            ):
                if field in fields:
                    parts = fields[field].read_fields(("modules", "parameters"))
                    if "modules" in parts:
                        _read_patterns(parts["modules"], modules)
                    if "parameters" in parts:
                        _read_patterns(parts["parameters"], parameters)
        return tables


def _read_patterns(entry: Entry, table: PatternTable) -> None:
    for path, patterns in entry.read_pairs().items():
        table.add(
            path, path
        )  # a canonical path is its own: applying the rules twice changes nothing
        for pattern in patterns.read_texts():
            table.add(pattern, path)


def _read_words(entry: Entry, mapping: dict[str, str], seen: dict[str, tuple[str, Place]]) -> None:
    for key, values in entry.read_pairs().items():
        canonical = key.read_text()
        mapping[canonical] = canonical
        for value in values.read_texts():
            word = value.read_text()
            if word in seen and seen[word][0] != canonical:
                raise value.make_error(f"'{word}' already means '{seen[word][0]}' ({seen[word][1]})")
            seen[word] = (canonical, value.place)
            mapping[word] = canonical


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def get_naming_family(rule: Rule) -> str:
    """The naming family a rule belongs to: the name of its file."""
    return PurePath(rule.place.file).stem
