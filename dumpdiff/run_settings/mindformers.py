"""The YAML of MindSpore Transformers as settings: dotted names, each with its line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ..model.errors import DumpError
from .settings import Given, Settings

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST = 20_000  #: values; aliases of aliases would go on for ever
_MERGE = "tag:yaml.org,2002:merge"


class _Reader:
    """Walks the nodes of one document; a later value of the same name counts."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.values: dict[str, Given] = {}
        self.notes: list[str] = []
        self.seen = 0
        self.constructor: Any = yaml.SafeLoader("")

    def mapping(self, node: yaml.MappingNode, prefix: str) -> None:
        for key, value in _pairs(node):
            name = f"{prefix}.{key.value}" if prefix else str(key.value)
            self.value(value, name, key.start_mark.line + 1)

    def value(self, node: Any, name: str, line: int) -> None:
        self.seen += 1
        if self.seen > _MOST:
            raise DumpError(
                f"{self.file}: more than {_MOST} values; expected a configuration of MindSpore Transformers"
            )
        if isinstance(node, yaml.MappingNode):
            self.mapping(node, name)
            return
        if isinstance(node, yaml.SequenceNode) and any(
            isinstance(item, yaml.MappingNode) for item in node.value
        ):
            for item in node.value:  # callbacks: each entry says by 'type' what it is
                if isinstance(item, yaml.MappingNode):
                    kind = next(
                        (value.value for key, value in _pairs(item) if key.value == "type"), ""
                    )
                    self.mapping(item, f"{name}.{kind}" if kind else name)
            return
        self.values[name] = Given(self._plain(node), f"{self.file}:{line}")
        if isinstance(node, yaml.ScalarNode) and not node.style and _looks_like_a_number(node):
            self.notes.append(
                f"{self.file}:{line}: {node.value} is a text in YAML 1.1, not a number; write it with a dot"
            )

    def _plain(self, node: Any) -> Any:
        if isinstance(node, yaml.SequenceNode):
            self.seen += len(node.value)
            if self.seen > _MOST:
                raise DumpError(f"{self.file}: more than {_MOST} values; expected a configuration")
            return [self._plain(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return str(node.value)
        try:
            return self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError):
            return node.value


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[Any, Any]]:
    """Keys and values; what ``<<`` merges in comes first, so that own keys count more."""
    own = []
    for key, value in node.value:
        if key.tag == _MERGE:
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for each in reversed(merged):
                if isinstance(each, yaml.MappingNode) and each is not node:
                    yield from _pairs(each)
        elif isinstance(key, yaml.ScalarNode):
            own.append((key, value))
    yield from own


def _looks_like_a_number(node: yaml.ScalarNode) -> bool:
    if node.tag != "tag:yaml.org,2002:str":
        return False
    try:
        float(node.value)
    except ValueError:
        return False
    return str(node.value).lstrip("+-.")[:1].isdigit()


def read_mindformers(text: str, file: str, path: Path) -> Settings:
    """The settings of a YAML file; ``base_config`` parents in the same folder are read first.

    Raises DumpError with the line if it is no YAML mapping.
    """
    reader = _Reader(file)
    _read(text, file, path, reader, depth=0)
    return Settings(str(path), "mindformers", "YAML", reader.values, notes=tuple(reader.notes))


def _read(text: str, file: str, path: Path, reader: _Reader, depth: int) -> None:
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else file
        raise DumpError(
            f"{place}: no valid YAML: {getattr(error, 'problem', None) or 'too deep'}"
        ) from error
    if not isinstance(node, yaml.MappingNode):
        raise DumpError(f"{file}: expected a YAML mapping (key: value), found none")
    for key, value in _pairs(node):
        if key.value == "base_config" and isinstance(value, yaml.ScalarNode):
            _parent(str(value.value), file, path, reader, depth)
    reader.file = file
    try:
        reader.mapping(node, "")
    except RecursionError:
        raise DumpError(
            f"{file}: nested too deeply; expected a configuration of MindSpore Transformers"
        ) from None


def _parent(name: str, file: str, path: Path, reader: _Reader, depth: int) -> None:
    parent = (path.parent / name).resolve()
    if depth > 4 or not parent.is_relative_to(path.parent.resolve()) or not parent.is_file():
        reader.notes.append(f"{file}: base_config {name} is not below its folder and was not read")
        return
    _read(parent.read_text(encoding="utf-8", errors="replace"), name, parent, reader, depth + 1)


def with_options(settings: Settings, options: dict[str, Given], notes: tuple[str, ...]) -> Settings:
    """The settings, with what a launch command sets on top."""
    return replace(
        settings,
        values={**settings.values, **options},
        notes=(*settings.notes, *notes),
        source="YAML and launch script",
    )
