"""Versions of msprobe (the ``mindstudio-probe`` distribution), from users and from dumps."""

from __future__ import annotations

import re

from ...model.errors import DumpError
from ...model.trace import Source

Version = tuple[int, ...]
OLDEST: Version = (1, 1)  #: the oldest version whose source was read
LATEST: Version = (26, 2)  #: the newest version whose source was read and that was run


def parse_version(text: str) -> Version:
    """Return ``26.2`` or ``8.3.3`` as numbers. Raise DumpError for anything else."""
    if not re.fullmatch(r"\d+(\.\d+){0,3}", text):
        raise DumpError(f"{text}: expected a version of msprobe such as 26.2 or 8.3.3")
    return tuple(map(int, text.split(".")))


def get_version(source: Source) -> Version:
    """Return the version that wrote a dump; the latest if the dump does not record it."""
    match = re.search(r"\d+(\.\d+)*", source.format_variant)
    return parse_version(match[0]) if source.format == "msprobe" and match else LATEST


def format_version(version: Version) -> str:
    """Return the version as users write it."""
    return ".".join(map(str, version))
