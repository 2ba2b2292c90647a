"""Versions of msprobe (the ``mindstudio-probe`` distribution), as users write them and as dumps tell them."""

from __future__ import annotations

import re

from ...model.errors import DumpError
from ...model.trace import Source

Version = tuple[int, ...]
OLDEST: Version = (1, 1)  #: the oldest that this was read from
LATEST: Version = (26, 2)  #: the newest that this was read from and run with


def parse_version(text: str) -> Version:
    """``26.2`` or ``8.3.3`` as numbers. Raises DumpError for anything else."""
    if not re.fullmatch(r"\d+(\.\d+){0,3}", text):
        raise DumpError(f"{text}: expected a version of msprobe such as 26.2 or 8.3.3")
    return tuple(map(int, text.split(".")))


def get_version(source: Source) -> Version:
    """The version that wrote a dump, as far as the dump tells, else the latest."""
    match = re.search(r"\d+(\.\d+)*", source.era)
    return parse_version(match[0]) if source.format == "msprobe" and match else LATEST


def format_version(version: Version) -> str:
    """As users write it."""
    return ".".join(map(str, version))
