"""A run's logs from a file or a folder; the format is judged by content, and one rank speaks for all that agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..model.errors import DumpError
from . import megatron, mindformers, trainer
from .curves import Curves
from .numbers import plain

_PARSERS: tuple[Callable[[str, str], Curves | None], ...] = (
    megatron.parse,
    mindformers.parse,
    trainer.parse,
)
_LINES = "; ".join((megatron.ANCHOR, mindformers.ANCHOR, trainer.ANCHOR))

_PREFIX = re.compile(r"^(?:\[(?:default|rank)?(\d+)\]: ?|(?:default|rank)?(\d+): )", re.MULTILINE)
LOG_NAMES = ("*.log", "*.jsonl", "trainer_state.json", "*.out", "*.txt")
_SAMPLE = (
    1 << 13
)  #: bytes at either end of a rank's log that are held against the rank that is read
_LONGEST = 1 << 30  #: bytes of one file


def read_log(path: str | Path) -> Curves:
    """The curves of one run.

    ``path`` is a log, or a folder of logs of all ranks (``msrun_log``). Of a folder the rank with the highest number is
    read (of a pipeline the last stage holds the loss); where ranks print losses of their own, their mean counts.

    Raises DumpError if no line of a known format is found: what was looked for is named.
    """
    place = Path(path)
    if place.is_dir():
        return _folder(place)
    if not place.is_file():
        raise DumpError(f"{path}: there is no such file")
    return _parsed(text_of(place), str(path))


def text_of(path: Path) -> str:
    """A log's text, without what drives a terminal."""
    with path.open("rb") as stream:
        return plain(stream.read(_LONGEST).decode("utf-8", errors="replace"))


def parse(text: str, path: str) -> Curves | None:
    """The first format that finds its lines; a launcher's prefix does not hide them."""
    return next((curves for parse in _PARSERS if (curves := parse(text, path)) is not None), None)


def _parsed(text: str, path: str) -> Curves:
    found = [curves for part in by_rank(text) if (curves := parse(part, path)) is not None]
    if not found:
        raise DumpError(
            f"{path}: no step of a training is printed in it; expected lines such as {_LINES}"
        )
    return found[0] if len(found) == 1 else _joined(found, path)


def by_rank(text: str) -> list[str]:
    """The lines of each rank where a launcher numbers them (torchrun, srun -l), else the text as it is."""
    head = text[: 1 << 16]
    if len(_PREFIX.findall(head)) < head.count("\n") // 2 or "\n" not in head:
        return [text]
    parts: dict[str, list[str]] = {}
    for line in text.split("\n"):
        match = _PREFIX.match(line)
        rank = match[1] or match[2] if match else ""
        parts.setdefault(rank, []).append(line[match.end() :] if match else line)
    return ["\n".join(lines) for lines in parts.values()]


def _folder(folder: Path) -> Curves:
    files = sorted(
        {file for name in LOG_NAMES for file in folder.glob(name) if file.is_file()}, key=rank_order
    )
    if not files:
        raise DumpError(
            f"{folder}: no logs in this folder ({', '.join(LOG_NAMES)}); give the log or its folder"
        )
    for i in range(len(files) - 1, -1, -1):
        curves = parse(text_of(files[i]), str(files[i]))
        if curves is not None:
            return _with_others(curves, files[:i], folder)
    raise DumpError(
        f"{folder}: none of {len(files)} logs holds a step of a training; expected lines such as {_LINES}"
    )


def rank_order(file: Path) -> tuple[int, str]:
    """Sorts logs by the last number of their names."""
    numbers = re.findall(r"\d+", file.stem)
    return (int(numbers[-1]) if numbers else -1, file.name)


def _with_others(curves: Curves, others: Sequence[Path], folder: Path) -> Curves:
    """The rank that was read, or the mean of all if the ends of the other ranks' logs show other losses."""
    differing = [file for file in others if not _agrees(curves, file)]
    if not differing:
        said = (
            f"{len(others) + 1} logs agree at both ends; {Path(curves.path).name} was read"
            if others
            else ""
        )
        return replace(curves, path=str(folder), notes=(*curves.notes, *filter(None, [said])))
    found = [other for file in others if (other := parse(text_of(file), str(file))) is not None]
    return _joined([*found, curves], str(folder))


def _agrees(curves: Curves, file: Path) -> bool:
    """Whether the losses at both ends of a log are those of ``curves``; a log without any does not disagree."""
    with file.open("rb") as stream:
        head = stream.read(_SAMPLE)
        stream.seek(max(file.stat().st_size - _SAMPLE, 0))
        ends = (head, stream.read(_SAMPLE))
    for end in ends:
        # The last record of the piece may be cut: it is left out.
        sample = parse(plain(end.decode("utf-8", errors="replace")).rpartition("\n")[0], str(file))
        if sample is None:
            continue
        _, mine, theirs = np.intersect1d(curves.steps, sample.steps, return_indices=True)
        same = np.isclose(
            curves.loss[mine],
            sample.loss[theirs],
            rtol=0,
            atol=2 * curves.loss_resolution,
            equal_nan=True,
        )
        if not same[1:].all():  # the first may lack its predecessor, from which it is recovered
            return False
    return True


def _joined(found: Sequence[Curves], path: str) -> Curves:
    """Ranks that print losses of their own: the mean over those that hold one, at the steps that all have."""
    holding = [
        curves for curves in found if np.nanmax(np.abs(curves.loss), initial=0.0) > 0
    ] or list(found)
    if all(np.array_equal(curves.loss, holding[-1].loss, equal_nan=True) for curves in holding):
        return replace(holding[-1], path=path)
    common = holding[-1].steps
    for curves in holding[:-1]:
        common = np.intersect1d(common, curves.steps)
    if not len(common):
        raise DumpError(f"{path}: holds several runs without a common step; give one log")
    rows = [np.searchsorted(curves.steps, common) for curves in holding]
    last, at = holding[-1], rows[-1]
    columns = ("norm", "rate", "scale", "skipped", "overflow", "nonfinite", "total")
    loss = np.mean([curves.loss[row] for curves, row in zip(holding, rows, strict=True)], axis=0)
    left_out = (
        f", {len(found) - len(holding)} without a loss are left out"
        if len(holding) < len(found)
        else ""
    )
    return replace(
        last,
        path=path,
        steps=common,
        loss=loss,
        others={name: column[at] for name, column in last.others.items()},
        notes=(
            *last.notes,
            f"{len(holding)} ranks print losses of their own: their mean was taken{left_out}",
        ),
        **{name: getattr(last, name)[at] for name in columns},
    )
