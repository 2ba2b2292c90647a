"""Read the logs of a run from a file or a folder; the format is detected from the content."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..model.errors import DumpError
from ..model.input_files import STANDARD_INPUT, open_input_file, open_input_stream, read_stream
from . import megatron, mindformers, nemo, table, tensorboard, torchtitan, trainer, verl
from .curves import Curves
from .log_text import strip_terminal_codes

_PARSERS: tuple[Callable[[str, str], Curves | None], ...] = (
    nemo.parse,
    megatron.parse,
    mindformers.parse,
    trainer.parse,
    torchtitan.parse,
    verl.parse,
    table.parse,
)
_EXPECTED_LINES = "; ".join(
    module.LINE_PATTERN
    for module in (megatron, mindformers, trainer, nemo, torchtitan, verl, table)
)

_EVENT_FILES = "events.out.tfevents.*"  #: of TensorBoard
#: What launchers write before each line, with the rank, process or host: torchrun, srun -l; mpirun;
#: Ray; pdsh and DeepSpeed; Docker Compose. A host has a digit, so that ``step:`` is none.
_PREFIXES = (
    re.compile(
        r"^(?:\[(?:default|rank)?(?P<a>\d+)\]: ?|(?:default|rank)?(?P<b>\d+): )", re.MULTILINE
    ),
    re.compile(r"^\[\d+,(?P<a>\d+)\]<std(?:out|err)>: ?(?P<b>)", re.MULTILINE),
    re.compile(r"^\((?P<a>[\w.:<>]+ pid=\d+[^)\n]*)\) ?(?P<b>)", re.MULTILINE),
    re.compile(r"^(?P<a>(?=[\w.-]*\d)[A-Za-z0-9][\w.-]*): (?P<b>)", re.MULTILINE),
    re.compile(r"^(?P<a>(?=[\w.-]*\d)[A-Za-z0-9][\w.-]*) +\| (?P<b>)", re.MULTILINE),
)
_PREFIX_SAMPLE = (
    1 << 16
)  #: characters in which at least half of the lines have a prefix with the rank
LOG_NAMES = ("*.log", "*.jsonl", "trainer_state.json", "*.out", "*.txt", "*.csv")
_END_SAMPLE = (
    1 << 13
)  #: bytes at either end of a rank's log that are compared with the rank that is read
_MAX_SIZE = 1 << 30  #: bytes that are read of one file


def read_log(path: str | Path) -> Curves:
    """Return the curves of one run.

    ``path`` is a log (also a pipe, or '-' for standard input), or a folder with the logs of all
    ranks (``msrun_log``). In a folder the rank with the highest number is read, because the last
    stage of a pipeline has the loss. If ranks print different losses, their mean is taken.

    Raises DumpError if no line of a known format is found; the message names the expected lines.
    """
    location = Path(path)
    if location.is_dir():
        return _read_folder(location)
    if str(path) != STANDARD_INPUT and not location.exists():
        raise DumpError(f"{path}: there is no such file")
    with open_input_stream(location) as stream:
        data = read_stream(stream, _MAX_SIZE)
    if tensorboard.is_event_file(data[:_END_SAMPLE]):
        return tensorboard.parse(data, str(path))
    curves_of_ranks = []
    for text in split_by_rank(_decode_log(data)):
        curves = parse(text, str(path))
        if curves is not None:
            curves_of_ranks.append(curves)
    if not curves_of_ranks:
        raise DumpError(
            f"{path}: no training step is printed in it; expected lines such as {_EXPECTED_LINES}"
        )
    if len(curves_of_ranks) == 1:
        return curves_of_ranks[0]
    return _average_ranks(curves_of_ranks, str(path))


def read_text(path: Path) -> str:
    """Return the text of a log, without terminal escape sequences."""
    return _decode_log(_read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    with open_input_file(path) as stream:
        return read_stream(stream, _MAX_SIZE)


def _decode_log(data: bytes) -> str:
    return strip_terminal_codes(data.decode("utf-8", errors="replace"))


def parse(text: str, path: str) -> Curves | None:
    """Parse a log with the first format that has lines in it; None if no format has."""
    for parse_format in _PARSERS:
        curves = parse_format(text, path)
        if curves is not None:
            return curves
    return None


def split_by_rank(text: str) -> list[str]:
    """Split a log into one text per process if a launcher names it before every line."""
    prefix = _find_prefix(text[:_PREFIX_SAMPLE])
    if prefix is None:
        return [text]
    lines_of_ranks: dict[str, list[str]] = {}
    for line in text.split("\n"):
        match = prefix.match(line)
        if match is None:
            lines_of_ranks.setdefault("", []).append(line)
        else:
            name = match["a"] or match["b"]
            lines_of_ranks.setdefault(name, []).append(line[match.end() :])
    return ["\n".join(lines) for lines in lines_of_ranks.values()]


def _find_prefix(head: str) -> re.Pattern[str] | None:
    """Return the form of the prefixes that at least half of the lines have, None without any."""
    n_lines = head.count("\n")
    for prefix in _PREFIXES:
        if n_lines and len(prefix.findall(head)) >= max(n_lines // 2, 1):
            return prefix
    return None


def _read_folder(folder: Path) -> Curves:
    matching_files = {file for name in LOG_NAMES for file in folder.glob(name)}
    files = sorted((file for file in matching_files if file.is_file()), key=order_by_rank)
    event_files = sorted(folder.glob(_EVENT_FILES))
    if not files and event_files:
        # A run that was resumed has several; records follow each other in one file, too.
        return tensorboard.parse(b"".join(map(_read_bytes, event_files)), str(folder))
    if not files:
        names = ", ".join((*LOG_NAMES, _EVENT_FILES))
        raise DumpError(f"{folder}: no logs in this folder ({names}); give the log or its folder")
    for i in range(len(files) - 1, -1, -1):
        curves = parse(read_text(files[i]), str(files[i]))
        if curves is not None:
            return _compare_with_ranks(curves, files[:i], folder)
    raise DumpError(
        f"{folder}: none of {len(files)} logs has a training step;"
        f" expected lines such as {_EXPECTED_LINES}"
    )


def order_by_rank(file: Path) -> tuple[int, str]:
    """Return a sort key: the last number of the file name, and the name."""
    numbers = re.findall(r"\d+", file.stem)
    return (int(numbers[-1]) if numbers else -1, file.name)


def _compare_with_ranks(curves: Curves, other_files: Sequence[Path], folder: Path) -> Curves:
    """Return ``curves``, or the mean of all ranks if another rank's log shows other losses.

    Only both ends of the other logs are compared.
    """
    if all(_has_same_ends(curves, file) for file in other_files):
        notes = list(curves.notes)
        if other_files:
            file_name = Path(curves.path).name
            notes.append(f"{len(other_files) + 1} logs agree at both ends; {file_name} was read")
        return replace(curves, path=str(folder), notes=tuple(notes))
    curves_of_ranks = []
    for file in other_files:
        other_curves = parse(read_text(file), str(file))
        if other_curves is not None:
            curves_of_ranks.append(other_curves)
    return _average_ranks([*curves_of_ranks, curves], str(folder))


def _has_same_ends(curves: Curves, file: Path) -> bool:
    """Whether both ends of a log show the losses of ``curves``; True if the log prints none."""
    with open_input_file(file) as stream:
        head = stream.read(_END_SAMPLE)
        stream.seek(max(file.stat().st_size - _END_SAMPLE, 0))
        tail = stream.read(_END_SAMPLE)
    for end in (head, tail):
        # The last record may be cut off, so it is not compared.
        text = strip_terminal_codes(end.decode("utf-8", errors="replace")).rpartition("\n")[0]
        sample = parse(text, str(file))
        if sample is None:
            continue
        _, rows, sample_rows = np.intersect1d(curves.steps, sample.steps, return_indices=True)
        equal = np.isclose(
            curves.loss[rows],
            sample.loss[sample_rows],
            rtol=0,
            atol=2 * curves.loss_resolution,
            equal_nan=True,
        )
        # The first loss may be computed from the one before it, which is not in the sample.
        if not equal[1:].all():
            return False
    return True


def _average_ranks(curves_of_ranks: Sequence[Curves], path: str) -> Curves:
    """Average the losses of all ranks that print one, at the steps that all have.

    The other columns are those of the last rank. Raises DumpError if there is no common step.
    """
    ranks = [
        curves for curves in curves_of_ranks if np.nanmax(np.abs(curves.loss), initial=0.0) > 0
    ]
    if not ranks:
        ranks = list(curves_of_ranks)
    last = ranks[-1]
    if all(np.array_equal(curves.loss, last.loss, equal_nan=True) for curves in ranks):
        return replace(last, path=path)
    steps = last.steps
    for curves in ranks[:-1]:
        steps = np.intersect1d(steps, curves.steps)
    if not len(steps):
        raise DumpError(f"{path}: contains several runs without a common step; give one log")
    losses = [curves.loss[np.searchsorted(curves.steps, steps)] for curves in ranks]
    rows = np.searchsorted(last.steps, steps)
    columns: dict[str, Any] = {
        name: getattr(last, name)[rows]
        for name in ("norm", "rate", "scale", "skipped", "overflow", "nonfinite", "total_loss")
    }
    note = f"{len(ranks)} ranks print different losses: their mean was taken"
    n_omitted = len(curves_of_ranks) - len(ranks)
    if n_omitted:
        note += f", {n_omitted} without a loss are omitted"
    return replace(
        last,
        path=path,
        steps=steps,
        loss=np.mean(losses, axis=0),
        other_losses={name: column[rows] for name, column in last.other_losses.items()},
        notes=(*last.notes, note),
        **columns,
    )
