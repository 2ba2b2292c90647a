"""Reports that leave a company: results without paths, user names and host names."""

from __future__ import annotations

import dataclasses
import getpass
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import pandas as pd

_Value = TypeVar("_Value")

#: The folders of an absolute path in a sentence. Names of ops have slashes, but begin with none.
_FOLDERS = re.compile(r"(?<![\w.)/-])(?:[A-Za-z]:)?(?:[/\\][^/\\\s\"'<>|;,:()]+)+[/\\]")
#: A text that is nothing but a path, also one with spaces.
_WHOLE_PATH = re.compile(r"/[^:\n]*/")
#: Folders whose subfolders are named after users.
_HOME = re.compile(r"[/\\](?:home|Users)[/\\]([\w.-]+)")
_HIDDEN_FOLDERS = "/…/"
_HIDDEN_NAME = "…"
#: Shorter names are parts of other words, and say little; that of the superuser says nothing.
_MIN_NAME = 3
_COMMON_NAME = "root"
#: Fields of results that are functions, not data.
_NOT_DATA = ("backend", "explainer")


def redact_result(result: _Value) -> _Value:
    """Return a result in which paths end with their last component only, and names are hidden.

    The names are those of this user and this host, and of the users whose folders the result
    names.
    """
    names = {_find_user(), socket.gethostname()}

    def collect_names(text: str) -> str:
        names.update(_HOME.findall(text))
        return text

    _map_texts(result, collect_names)
    names.discard(_COMMON_NAME)
    patterns = [re.escape(name) for name in sorted(names) if len(name) >= _MIN_NAME]
    hidden_names = re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)")

    def redact(text: str) -> str:
        shortened = _WHOLE_PATH.sub(_HIDDEN_FOLDERS, text, count=1) if text[:1] == "/" else text
        shortened = _FOLDERS.sub(_HIDDEN_FOLDERS, shortened)
        return hidden_names.sub(_HIDDEN_NAME, shortened) if patterns else shortened

    return cast(_Value, _map_texts(result, redact))


def _find_user() -> str:
    """Return the name of this user, '' if the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return data with every text changed; the functions of a result are left as they are."""
    if isinstance(value, str):
        return change(value)
    changed = value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {}
        for field in dataclasses.fields(value):
            if field.name not in _NOT_DATA:
                fields[field.name] = _map_texts(getattr(value, field.name), change)
        changed = dataclasses.replace(value, **fields)
    elif isinstance(value, pd.DataFrame):
        changed = value.copy()
        for column in value.columns:
            if pd.api.types.is_object_dtype(value[column]):
                changed[column] = [_map_texts(cell, change) for cell in value[column]]
    elif isinstance(value, Mapping):
        changed = {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        changed = type(value)(*(_map_texts(item, change) for item in value))
    elif isinstance(value, (list, tuple)):
        changed = type(value)(_map_texts(item, change) for item in value)
    return changed
