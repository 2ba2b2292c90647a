"""The norms of one side from whatever there is: the kind of input is judged by content."""

from __future__ import annotations

from pathlib import Path

from ...model.errors import DumpError
from ...readers.files import head
from ...rulebook import Rules, load_rules
from ..side import Norms
from . import dump, gradients, norm_files, printed_text
from .interpretation import settled

_ARRAYS = (".npy", ".npz", ".pt", ".pth", ".bin", ".safetensors", ".ckpt")


def read_norms(path: str | Path, step: int | None = None, rules: Rules | None = None) -> Norms:
    """The gradient norm of every parameter.

    ``path`` is a log or a folder of logs with local norms, a folder of MindSpore's ``local_norm__*.npy``, a dump, saved
    gradients (folder or archive), or a list of numbers; ``step`` counts the training's steps from 1 (a dump's first
    step is 0), by default the first. Raises DumpError if it is none of these, or has no such step.
    """
    place, said = Path(path), str(path)
    rules = load_rules() if rules is None else rules
    if not place.exists():
        raise DumpError(f"{said}: no such file or folder")
    return settled(
        _folder(place, said, step, rules) if place.is_dir() else _file(place, said, step, rules)
    )


def _folder(place: Path, said: str, step: int | None, rules: Rules) -> Norms:
    ranks = norm_files.found(place)
    if ranks:
        return norm_files.read(said, ranks, step)
    parts = dump.parts_of(said)
    if parts:
        return dump.read(said, parts, step, rules)
    held = [file for file in place.iterdir() if file.suffix in _ARRAYS]
    if held or gradients.numbered(place):
        return gradients.read(said, step, rules)
    logs = printed_text.logs_of(place)
    norms = printed_text.read(said, logs, step)
    if norms is None:
        within = (
            f"none of {len(logs)} logs holds local norms"
            if logs
            else "holds no logs, gradients or dump"
        )
        raise DumpError(f"{said}: {within}; expected {printed_text.EXPECTED}")
    return norms


def _file(place: Path, said: str, step: int | None, rules: Rules) -> Norms:
    if _is_text(place):
        norms = printed_text.read(said, [place], step)
        if norms is not None:
            return norms
        parts = dump.parts_of(said)
        if parts:
            return dump.read(said, parts, step, rules)
        raise DumpError(f"{said}: no gradient norms are in it; expected {printed_text.EXPECTED}")
    return gradients.read(said, step, rules)


def _is_text(place: Path) -> bool:
    """Whether a file is text: its first bytes hold none that a log has not, and it begins as no archive does."""
    start = head(place, 4096)
    return b"\0" not in start and not start.startswith((b"PK\x03\x04", b"\x93NUMPY", b"\x80"))
