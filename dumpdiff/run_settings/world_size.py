"""The number of processes that a launcher starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from .settings import SettingValue
from .shell import Word
from .values import parse_integer

_WORKERS = re.compile(
    r"--(?:nproc[-_]per[-_]node|worker[-_]num|num[-_]gpus|num[-_]processes|gpus)(?![-_\w])"
)
_NODES = re.compile(r"--(?:nnodes|num[-_]nodes)(?![-_\w])")


def find_world_size(launcher: Sequence[Word]) -> Word | None:
    """Return the number of processes on all nodes, None if the launcher's options do not say it."""
    workers = _find_option(launcher, _WORKERS)
    nodes = _find_option(launcher, _NODES)
    if workers is None and nodes is None and _is_plain_python(launcher):
        return Word("1", launcher[0].line)
    return compute_world_size(workers, nodes)


def _is_plain_python(launcher: Sequence[Word]) -> bool:
    """Return whether the words before the script are ``python`` or ``python -u``: one process."""
    if not 0 < len(launcher) < 3:
        return False
    return PurePosixPath(launcher[0].text).name.startswith("python")


def _find_option(words: Sequence[Word], pattern: re.Pattern[str]) -> Word | None:
    """Return the value of the last option that matches, attached by ``=`` or the next word."""
    value: Word | None = None
    for index, word in enumerate(words):
        match = pattern.match(word.text)
        if match is None:
            continue
        attached_text = word.text[match.end() :].lstrip("=")
        if attached_text:
            value = Word(attached_text, word.line, word.is_known)
        else:
            value = words[min(index + 1, len(words) - 1)]
    return value


def compute_world_size(workers: Word | None, nodes: Word | None) -> Word | None:
    """Return workers x nodes, None if a number is not known."""
    if workers is None:
        return None
    if nodes is None:
        nodes = Word("1", workers.line)
    if not (workers.is_known and nodes.is_known):
        return None
    try:
        size = parse_integer(workers.text) * parse_integer(nodes.text)
    except (ValueError, OverflowError):
        return None
    return Word(str(size), workers.line)


def add_world_size(
    values: Mapping[str, SettingValue], world_size: Word | None, file: str
) -> dict[str, SettingValue]:
    """Return the values with the number of processes, if it is known."""
    if world_size is None:
        return dict(values)
    setting = SettingValue(world_size.text, f"{file}:{world_size.line}")
    return {**values, "world_size": setting}
