"""A YAML as settings: dotted names, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ..model.errors import DumpError
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text
from .settings import Settings, SettingValue

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_VALUES = 20_000  #: aliases of aliases could expand without end
_MAX_DEPTH = 4  #: parents of a file by ``base_config``, and references to references
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
_FILLED_IN = ("auto", "???")
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


class _YamlWalker:
    """Collects the values of one document; a later value of a name replaces an earlier one."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.values: dict[str, SettingValue] = {}
        self.notes: list[str] = []
        self.n_values = 0
        self.constructor: Any = yaml.SafeLoader("")

    def visit_mapping(self, node: yaml.MappingNode, prefix: str) -> None:
        for key, value in _iterate_pairs(node):
            name = f"{prefix}.{key.value}" if prefix else str(key.value)
            self.visit_value(value, name, key.start_mark.line + 1)

    def visit_value(self, node: Any, name: str, line: int) -> None:
        self.n_values += 1
        if self.n_values > _MAX_VALUES:
            raise DumpError(
                f"{self.file}: more than {_MAX_VALUES} values; expected the settings of a training"
            )
        if isinstance(node, yaml.MappingNode):
            self.visit_mapping(node, name)
            return
        if isinstance(node, yaml.SequenceNode):
            mappings = [item for item in node.value if isinstance(item, yaml.MappingNode)]
            for item in mappings:  # callbacks: the key 'type' of each says what it is
                kind = _find_type(item)
                self.visit_mapping(item, f"{name}.{kind}" if kind else name)
            if mappings:
                return
        self.values[name] = SettingValue(self._convert_node(node), f"{self.file}:{line}")
        if _is_number_text(node):
            self.notes.append(
                f"{self.file}:{line}: {node.value} is a text in YAML 1.1, not a number;"
                " write it with a dot"
            )

    def _convert_node(self, node: Any) -> Any:
        if isinstance(node, yaml.SequenceNode):
            self.n_values += len(node.value)
            if self.n_values > _MAX_VALUES:
                raise DumpError(
                    f"{self.file}: more than {_MAX_VALUES} values; expected a configuration"
                )
            return [self._convert_node(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return str(node.value)
        try:
            return self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError):
            return node.value


def _find_type(node: yaml.MappingNode) -> str:
    """Return the value of the key 'type', '' if there is none."""
    for key, value in _iterate_pairs(node):
        if key.value == "type":
            return value.value  # type: ignore[no-any-return]
    return ""


def _iterate_pairs(node: yaml.MappingNode) -> Iterator[tuple[Any, Any]]:
    """Iterate over keys and values.

    What ``<<`` merges comes first, so that the node's own keys replace it.
    """
    own_pairs = []
    for key, value in node.value:
        if key.tag == _MERGE:
            yield from _iterate_merged_pairs(node, value)
        elif isinstance(key, yaml.ScalarNode):
            own_pairs.append((key, value))
    yield from own_pairs


def _iterate_merged_pairs(node: yaml.MappingNode, value: Any) -> Iterator[tuple[Any, Any]]:
    parents = [value]
    if isinstance(value, yaml.SequenceNode):
        parents = value.value
    for parent in reversed(parents):
        if isinstance(parent, yaml.MappingNode) and parent is not node:
            yield from _iterate_pairs(parent)


def _is_number_text(node: Any) -> bool:
    """Return whether a value looks like a number but is a text in YAML 1.1, as 1e-5 is."""
    if not isinstance(node, yaml.ScalarNode) or node.style or node.tag != _TEXT:
        return False
    try:
        float(node.value)
    except ValueError:
        return False
    return str(node.value).lstrip("+-.")[:1].isdecimal()


def read_yaml(text: str, file: str, path: Path) -> Settings:
    """Return the settings of a YAML of MindSpore Transformers, or of a kind yet to be found.

    Its ``base_config`` parents in the same folder are read first.

    Raises DumpError with the line if it is no YAML mapping.

    """
    walker = _YamlWalker(file)
    _walk_document(text, file, path, walker, depth=0)
    return Settings(str(path), "mindformers", "YAML", walker.values, notes=tuple(walker.notes))


def _walk_document(text: str, file: str, path: Path, walker: _YamlWalker, depth: int) -> None:
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else file
        problem = getattr(error, "problem", None) or "nested too deeply"
        raise DumpError(f"{place}: no valid YAML: {problem}") from error
    if not isinstance(node, yaml.MappingNode):
        raise DumpError(f"{file}: expected a YAML mapping (key: value), found none")
    for key, value in _iterate_pairs(node):
        if key.value == "base_config" and isinstance(value, yaml.ScalarNode):
            _walk_parent(str(value.value), file, path, walker, depth)
    walker.file = file
    try:
        walker.visit_mapping(node, "")
    except RecursionError:
        raise DumpError(f"{file}: nested too deeply; expected the settings of a training") from None


def _walk_parent(name: str, file: str, path: Path, walker: _YamlWalker, depth: int) -> None:
    parent = (path.parent / name).resolve()
    is_below = parent.is_relative_to(path.parent.resolve())
    if depth > _MAX_DEPTH or not is_below or not parent.is_file():
        walker.notes.append(f"{file}: base_config {name} is not below its folder and was not read")
        return
    text = read_input_text(parent, MAX_WRITTEN_BYTES, errors="replace")
    _walk_document(text, name, parent, walker, depth + 1)


def add_options(
    settings: Settings, options: dict[str, SettingValue], notes: tuple[str, ...]
) -> Settings:
    """Return the settings with the options of a launch command, which override them."""
    return replace(
        settings,
        values={**settings.values, **options},
        notes=(*settings.notes, *notes),
        source="YAML and launch script",
    )


def mark_references(settings: Settings) -> Settings:
    """Return the settings with a doubt at every value that another program fills in.

    That are references (``${model.hidden_size}`` of OmegaConf), which are resolved if they name a
    key of the same file, and ``auto`` and ``???``.
    """
    values = {
        name: _resolve(name, setting, settings.values) for name, setting in settings.values.items()
    }
    return replace(settings, values=values)


def _resolve(name: str, setting: SettingValue, values: Mapping[str, SettingValue]) -> SettingValue:
    place = name
    for _ in range(_MAX_DEPTH):
        match = _REFERENCE.fullmatch(str(setting.value).strip())
        if match is None:
            break
        # ${.size} is a key next to this one, ${..size} one level above.
        parents = place.split(".")[: -len(match[1])] if match[1] else []
        place = ".".join([*parents, match[2]])
        if place not in values:
            break
        setting = replace(setting, value=values[place].value)
    text = str(setting.value).strip()
    if "${" in text or text.lower() in _FILLED_IN:
        return replace(setting, doubt=f"its value is {text}, which the program fills in")
    return setting
