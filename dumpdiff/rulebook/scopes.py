"""Canonical module paths and parameter names, from the names of every naming family.

Names are matched from the first repeated block on (``layers.{layer}``, ``h.{layer}``, ...), so
wrappers in front of it are ignored. Below the block, the longest pattern wins, and what follows it
is kept: ``layers.0.self_attn.something`` becomes ``layers.0.attention.something``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .document import Entry, Place
from .names import split_segments
from .patterns import PatternTable, Rule, find_first_match

_MAX_REWRITES = 8  #: of one path; a shipped rule needs at most three
#: A number that is a whole segment of a name: that of a layer, an expert, a call.
_NUMBER = re.compile(r"(?<![^./])(\d{1,9})(?![^./-])")
_DIGITS = re.compile(r"\d+")
#: Stands for the first number of a name that is read for all numbers; longer than any of these.
_FIRST_PLACEHOLDER = 10**12


@dataclass(frozen=True)
class Reading:
    """The canonical path of a name (``''`` if no rule matches), and the rules that were applied."""

    path: str = ""
    rules: tuple[Rule, ...] = ()
    #: segments of the name that the path leaves out: wrappers of the whole model, or a tower
    front: tuple[str, ...] = ()


class _NumberlessReader:
    """Reads each name once, and of names that differ only in their numbers one for all.

    The layers of a model have the same names up to a number, and rules capture any number. Numbers
    that a rule names itself are read as they are.
    """

    def __init__(self, read: Callable[[str], Reading]) -> None:
        self._read = read
        self._readings: dict[str, Reading] = {}
        self._templates: dict[tuple[str, ...], Reading] = {}  # by what is around the numbers
        self._literal_numbers: set[str] = set()

    def keep_numbers_of(self, texts: Iterable[str]) -> None:
        """Read names with a number of one of these texts, patterns or words, as they are."""
        for text in texts:
            self._literal_numbers.update(_DIGITS.findall(text))

    def read(self, name: str) -> Reading:
        """Return the reading of a name."""
        if name not in self._readings:
            self._readings[name] = self._read_template(name)
        return self._readings[name]

    def _read_template(self, name: str) -> Reading:
        """Read a name with placeholders for its numbers, and put the numbers in their places."""
        parts = _NUMBER.split(name)  # every other part is a number
        numbers = parts[1::2]
        if not numbers or not self._literal_numbers.isdisjoint(numbers):
            return self._read(name)
        key = tuple(parts[::2])
        template = self._templates.get(key)
        if template is None:
            parts[1::2] = [str(_FIRST_PLACEHOLDER + index) for index in range(len(numbers))]
            template = self._templates[key] = self._read("".join(parts))
        path, front = template.path, template.front
        for placeholder, number in enumerate(numbers, start=_FIRST_PLACEHOLDER):
            word = str(placeholder)
            path = path.replace(word, number)
            if word in front:
                front = tuple(number if segment == word else segment for segment in front)
        return Reading(path, template.rules, front)


@dataclass(frozen=True)
class _Tables:
    """The patterns of one source of rules: the shipped files, or one file of ``--rules``."""

    layers: PatternTable = field(default_factory=PatternTable)
    block_modules: PatternTable = field(default_factory=PatternTable)
    block_parameters: PatternTable = field(default_factory=PatternTable)
    model_modules: PatternTable = field(default_factory=PatternTable)
    model_parameters: PatternTable = field(default_factory=PatternTable)


#: Segments below a block, and the rules that were applied to get them.
_BlockPath = tuple[tuple[str, ...], tuple[Rule, ...]]


class ScopeRules:
    """All scope rules; later sources override earlier ones.

    ``sources`` holds one list of ``scopes:`` sections for each source, the shipped rules first.
    """

    def __init__(self, sources: Sequence[Sequence[Entry]]) -> None:
        self._wrappers: set[str] = set()
        self._prefixes: dict[str, str] = {}
        self._leaves: dict[str, str] = {}
        self._rewritten_paths: dict[tuple[str, ...], _BlockPath] = {}
        self._scope_reader = _NumberlessReader(self._read_scope)
        self._parameter_reader = _NumberlessReader(self._read_parameter)
        tables = [self._read_tables(source) for source in sources]
        tables.reverse()
        self._layers = [table.layers for table in tables]
        self._block_modules = [table.block_modules for table in tables]
        self._block_parameters = [table.block_parameters for table in tables]
        self._model_modules = [table.model_modules for table in tables]
        self._model_parameters = [table.model_parameters for table in tables]
        texts = [text for rule in self.rules for text in (rule.pattern, rule.path)]
        texts += [*self._wrappers, *self._prefixes, *self._leaves]
        for reader in (self._scope_reader, self._parameter_reader):
            reader.keep_numbers_of(texts)

    @property
    def rules(self) -> list[Rule]:
        """Every pattern, in the order in which they are tried."""
        groups = zip(
            self._layers, self._block_modules, self._block_parameters, self._model_modules,
            self._model_parameters, strict=True,
        )  # fmt: skip
        return [rule for tables in groups for table in tables for rule in table.rules]

    def resolve_scope(self, name: str) -> Reading:
        """Return the canonical path of a module, from its path or the full name of an operator.

        It is computed once per name: both sides of a comparison have most names in common.
        """
        return self._scope_reader.read(name)

    def resolve_parameter(self, name: str) -> Reading:
        """Return the canonical name of a parameter, of its gradient or of its optimizer state.

        It is computed once per name.
        """
        return self._parameter_reader.read(name)

    def _read_scope(self, name: str) -> Reading:
        path = self._split_without_wrappers(name)
        for start in range(len(path)):
            match = find_first_match(self._model_modules, path, start, exact=True)
            if match is not None:
                return self._make_reading(path[:start], match.path, (match.rule,))
            layer = find_first_match(self._layers, path, start)
            if layer is not None:
                module, rules = self._rewrite_module(path[layer.end :])
                full_path = _join(layer.path, *module)
                return self._make_reading(path[:start], full_path, (layer.rule, *rules))
        return Reading()

    def _read_parameter(self, name: str) -> Reading:
        path = self._split_without_wrappers(name)
        module = path[:-1]
        for start in range(len(path)):
            match = find_first_match(self._model_parameters, path, start, exact=True)
            if match is not None:
                return self._make_reading(path[:start], match.path, (match.rule,))
            if start < len(module):
                match = find_first_match(self._model_modules, module, start, exact=True)
            if match is not None:
                full_path = _join(match.path, self._get_leaf(path[-1]))
                return self._make_reading(path[:start], full_path, (match.rule,))
            layer = find_first_match(self._layers, module, start)
            if layer is not None:
                parameter, rules = self._rewrite_parameter(path[layer.end :])
                full_path = _join(layer.path, *parameter)
                return self._make_reading(path[:start], full_path, (layer.rule, *rules))
        return Reading()

    def _rewrite_parameter(self, path: tuple[str, ...]) -> _BlockPath:
        """Return the canonical form of a parameter's path below a block."""
        match = find_first_match(self._block_parameters, path, exact=True)
        if match is not None:
            return tuple(match.path.split(".")), (match.rule,)
        module, rules = self._rewrite_module(path[:-1])
        match = find_first_match(self._block_parameters, (*module, path[-1]), exact=True)
        if match is not None:
            return tuple(match.path.split(".")), (*rules, match.rule)
        return (*module, self._get_leaf(path[-1])), rules

    def _rewrite_module(self, path: tuple[str, ...]) -> _BlockPath:
        """Return the canonical form of a module's path below a block, computed once per path."""
        if path not in self._rewritten_paths:
            self._rewritten_paths[path] = self._rewrite_until_stable(path)
        return self._rewritten_paths[path]

    def _rewrite_until_stable(self, path: tuple[str, ...]) -> _BlockPath:
        """Rewrite a path until it does not change, so that a canonical path maps to itself."""
        rules: list[Rule] = []
        for _ in range(_MAX_REWRITES):
            match = find_first_match(self._block_modules, path)
            if match is None:
                break
            rewritten = (*match.path.split("."), *path[match.end :])
            is_stable = rewritten == path
            if not is_stable or not rules:
                rules.append(match.rule)
            if is_stable:
                break
            path = rewritten
        return path, tuple(rules)

    def _make_reading(self, front: Sequence[str], path: str, rules: tuple[Rule, ...]) -> Reading:
        """Return a reading whose path begins with the known prefixes in front of the block."""
        prefixes = dict.fromkeys(
            self._prefixes[segment] for segment in front if segment in self._prefixes
        )
        left_out = tuple(segment for segment in front if segment not in self._prefixes)
        return Reading(_join(*prefixes, path), rules, left_out)

    def _split_without_wrappers(self, name: str) -> tuple[str, ...]:
        return tuple(segment for segment in split_segments(name) if segment not in self._wrappers)

    def _get_leaf(self, leaf: str) -> str:
        return self._leaves.get(leaf, leaf)

    def _read_tables(self, sections: Sequence[Entry]) -> _Tables:
        tables = _Tables()
        words: dict[str, tuple[str, Place]] = {}
        for section in sections:
            fields = section.read_fields(
                ("wrappers", "prefixes", "leaves", "layers", "block", "model")
            )
            if "wrappers" in fields:
                self._wrappers.update(
                    entry.read_text() for entry in fields["wrappers"].read_texts()
                )
            if "prefixes" in fields:
                _read_words(fields["prefixes"], self._prefixes, words)
            if "leaves" in fields:
                _read_words(fields["leaves"], self._leaves, words)
            if "layers" in fields:
                _read_patterns(fields["layers"], tables.layers)
            if "block" in fields:
                _read_section(fields["block"], tables.block_modules, tables.block_parameters)
            if "model" in fields:
                _read_section(fields["model"], tables.model_modules, tables.model_parameters)
        return tables


def _read_section(section: Entry, modules: PatternTable, parameters: PatternTable) -> None:
    fields = section.read_fields(("modules", "parameters"))
    if "modules" in fields:
        _read_patterns(fields["modules"], modules)
    if "parameters" in fields:
        _read_patterns(fields["parameters"], parameters)


def _read_patterns(entry: Entry, table: PatternTable) -> None:
    for path, patterns in entry.read_pairs().items():
        # a canonical path maps to itself, so that applying the rules twice changes nothing
        table.add(path, path)
        for pattern in patterns.read_texts():
            table.add(pattern, path)


def _read_words(
    entry: Entry, mapping: dict[str, str], first_uses: dict[str, tuple[str, Place]]
) -> None:
    """Add word -> canonical word to ``mapping``. Raises RuleError if a word has two meanings."""
    for key, values in entry.read_pairs().items():
        canonical = key.read_text()
        mapping[canonical] = canonical
        for value in values.read_texts():
            word = value.read_text()
            if word in first_uses:
                meaning, place = first_uses[word]
                if meaning != canonical:
                    raise value.make_error(f"'{word}' already means '{meaning}' ({place})")
            first_uses[word] = (canonical, value.place)
            mapping[word] = canonical


def _join(*parts: str) -> str:
    """Join the parts of a path that are not empty."""
    return ".".join(part for part in parts if part)
