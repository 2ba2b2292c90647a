"""The language of what people read: English, or that of a gettext catalog.

Only text for the terminal and HTML pages is translated, inside :func:`use_chosen_language`.
Everything else (JSON, CSV, Markdown, JUnit, what a result stores) is English. The language is the
first of ``DUMPDIFF_LANG`` (which ``--lang`` sets, so that worker processes have it, too),
``LC_ALL``, ``LC_MESSAGES`` and ``LANG`` that is set.

A message is an English sentence with named placeholders, and is its own key in the catalog: what
has no entry is shown in English. The catalog is read as text: a compiled one would be a second copy
of it in the repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "DUMPDIFF_LANG"
_VARIABLES = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "zh")
_CATALOGS = Path(__file__).parent / "catalogs"

_current: ContextVar[str] = ContextVar("language", default=ENGLISH)


def find_language(environment: Mapping[str, str]) -> str:
    """Return the language that the variables of an environment choose.

    >>> find_language({"LANG": "zh_CN.UTF-8"}), find_language({"LC_ALL": "C", "LANG": "zh_CN"})
    ('zh', 'en')
    """
    for name in _VARIABLES:
        if environment.get(name):
            language = environment[name][:2].lower()
            return language if language in LANGUAGES else ENGLISH
    return ENGLISH


@contextmanager
def use_chosen_language() -> Iterator[None]:
    """Translate into the language of the environment while the body runs."""
    token = _current.set(find_language(os.environ))
    try:
        yield
    finally:
        _current.reset(token)


def get_language() -> str:
    """Return the language of the messages now, one of :data:`LANGUAGES`."""
    return _current.get()


def translate(message: str, **values: object) -> str:
    """Return a message in the current language, its placeholders replaced by ``values``.

    >>> translate("{shown} of {total} findings shown", shown=2, total=7)
    '2 of 7 findings shown'
    """
    translation = read_catalog(_current.get()).get(message) or message
    return translation.format(**values) if values else translation


@cache
def read_catalog(language: str) -> Mapping[str, str]:
    """Return the messages of a language with their translations; English has none."""
    if language == ENGLISH:
        return {}
    entries: dict[str, str] = {}
    message = keyword = ""
    for line in (_CATALOGS / f"{language}.po").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        if not line.startswith('"'):
            keyword, _, line = line.partition(" ")  # noqa: PLW2901 - the rest is a string
        text = json.loads(line)  # a string of a catalog has the escapes of JSON
        if keyword == "msgid":
            message = text
        else:
            entries[message] = entries.get(message, "") + text
    entries.pop("")  # the header
    return entries
