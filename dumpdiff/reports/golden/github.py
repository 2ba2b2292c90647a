"""A golden check as annotations of a GitHub workflow: lines that the runner reads from its log."""

from __future__ import annotations

from typing import IO

from ...golden_reference import GoldenCheck, ValueCheck
from .blocks import format_difference

_MAX_ANNOTATIONS = 10  #: GitHub shows no more of one step
_LEVELS = {"differ": "error", "inconclusive": "warning", "agree": "notice"}


def write(check: GoldenCheck, stream: IO[bytes]) -> None:
    """Write the answer, then one annotation for each source line where something is different."""
    lines = [_format_command(_LEVELS[check.verdict], "", f"golden {check.verdict}", check.headline)]
    first_by_source: dict[str, ValueCheck] = {}
    for item in check.differences:
        first_by_source.setdefault(item.source, item)
    for item in list(first_by_source.values())[: _MAX_ANNOTATIONS - 1]:
        level = "warning" if item.state == "unknown" else "error"
        lines.append(_format_command(level, item.source, item.state, format_difference(item)))
    stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def _format_command(level: str, source: str, title: str, message: str) -> str:
    """Return a workflow command; the characters that end one of its parts are escaped."""
    file, _, line = source.rpartition(":")
    place = f"file={_escape_property(file)},line={line}," if file and line.isdecimal() else ""
    return f"::{level} {place}title={_escape_property(title)}::{_escape_message(message)}"


def _escape_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")
