"""A configuration file as settings: YAML, JSON or TOML, of the kind that its keys prove."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from .arguments import convert_swift_options, read_argument_mapping
from .file_kind import FileKind, find_kind, load_kinds
from .settings import Settings, SettingValue
from .yaml_document import mark_references, read_yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_DEPTH = 30  #: mappings within mappings
_SHOWN_KEYS = 5  #: of a file whose kind is not known
_YAML_SUFFIXES = (".yaml", ".yml")


def is_document(text: str, path: Path) -> bool:
    """Return whether a file is YAML, JSON or TOML, by its suffix or its first character."""
    return path.suffix in (*_YAML_SUFFIXES, ".toml") or text.lstrip().startswith("{")


def read_document(text: str, path: Path) -> Settings:
    """Return the settings in a YAML, JSON or TOML.

    Raises DumpError if it cannot be parsed, or if its keys do not prove that it holds the settings
    of a training.
    """
    if path.suffix == ".toml":
        return _recognize(_flatten_document(_load_toml(text, path), path, "TOML"))
    if path.suffix in _YAML_SUFFIXES:
        return _recognize(read_yaml(text, path.name, path))
    return _parse_json(text, path)


def _load_toml(text: str, path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DumpError(f"{path}: no valid TOML ({error})") from error


def _parse_json(text: str, path: Path) -> Settings:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: no valid JSON ({error})") from error
    arguments = data.get("args", data) if isinstance(data.get("args"), dict) else data
    settings = _flatten_document(arguments, path, "JSON")
    kind = _find_settings_kind(settings)
    if kind.framework in ("megatron", "swift"):
        return read_argument_mapping(arguments, kind.framework, str(path), path.name)
    return _name_framework(settings, kind)


def _flatten_document(data: Mapping[str, Any], path: Path, source: str) -> Settings:
    """Return a nested document as settings with dotted names, of a kind yet to be found."""
    values = {name: SettingValue(value, path.name) for name, value in _iterate_leaves(data, "", 0)}
    return Settings(str(path), "mindformers", source, values)


def _iterate_leaves(data: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and value and depth < _MAX_DEPTH:
            yield from _iterate_leaves(value, name, depth + 1)
        else:
            yield name, value


def _recognize(settings: Settings) -> Settings:
    """Return the settings of a document with the framework that its keys prove.

    Raises DumpError if they prove none.
    """
    return _name_framework(settings, _find_settings_kind(settings))


def _name_framework(settings: Settings, kind: FileKind) -> Settings:
    if kind.framework == "swift":
        return convert_swift_options(settings)
    if kind.framework == "mindformers":
        return settings
    assert kind.framework is not None
    return mark_references(replace(settings, framework=kind.framework))


def _find_settings_kind(settings: Settings) -> FileKind:
    """Return the kind of a document. Raises DumpError unless it holds settings of a training."""
    kind = find_kind(settings.values)
    if kind is not None and kind.framework is not None:
        return kind
    if kind is not None:
        raise DumpError(f"{settings.path}: is {kind.name}; {kind.advice}")
    shown_keys = ", ".join(list(settings.values)[:_SHOWN_KEYS]) or "none"
    readable_names = "; ".join(kind.name for kind in load_kinds() if kind.framework is not None)
    raise DumpError(
        f"{settings.path}: its keys ({shown_keys}) prove no kind of settings;"
        f" expected {readable_names}, or a launch script, or a log with the run's arguments"
    )
