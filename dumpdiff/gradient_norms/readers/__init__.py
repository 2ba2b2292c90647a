"""Readers of gradient norms. The kind of input is recognized by its content."""

from __future__ import annotations

from pathlib import Path

from ...model.errors import DumpError
from ...model.input_files import check_input, read_head
from ...rulebook import Rules, load_rules
from ..norms import Norms
from . import dump, event_files, gradient_files, msprobe_monitor, norm_files, printed_text
from .interpretation import interpret_norms

#: Endings of files that may hold gradients.
_ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".bin", ".safetensors", ".ckpt")
#: First bytes of ZIP archives, of NumPy files and of pickles.
_BINARY_MAGIC = (b"PK\x03\x04", b"\x93NUMPY", b"\x80")
#: Bytes of a file that decide whether it is text.
_HEAD_SIZE = 4096


def read_norms(path: str | Path, step: int | None = None, rules: Rules | None = None) -> Norms:
    """Read the gradient norm of every parameter.

    ``path`` is a log or a folder of logs with local norms, a folder of MindSpore's
    ``local_norm__*.npy``, the CSV of msprobe's monitor, event files of TensorBoard, a dump, saved
    gradients (folder or archive), or a list of numbers.
    ``step`` counts the steps of the training from 1 (a dump's first step is 0); by default the
    first one is read. Raises DumpError if the input is none of these, or has no such step.
    """
    rules = load_rules() if rules is None else rules
    location = Path(path)
    check_input(location)
    if location.is_dir():
        norms = _read_folder(location, str(path), step, rules)
    else:
        norms = _read_file(location, str(path), step, rules)
    return interpret_norms(norms)


def _read_folder(folder: Path, path: str, step: int | None, rules: Rules) -> Norms:
    rank_folders = norm_files.find_rank_folders(folder)
    if rank_folders:
        return norm_files.read_norm_files(path, rank_folders, step)
    monitor_files = msprobe_monitor.find_monitor_files(folder)
    if monitor_files:
        return msprobe_monitor.read_monitor_norms(path, monitor_files, step)
    parts = dump.find_dump_parts(path)
    if parts:
        return dump.read_dump_norms(path, parts, step, rules)
    has_arrays = any(file.suffix in _ARRAY_SUFFIXES for file in folder.iterdir())
    if has_arrays or gradient_files.find_steps(folder):
        return gradient_files.read_gradients(path, step, rules)
    logs = printed_text.find_logs(folder)
    norms = printed_text.read_printed_norms(path, logs, step)
    if norms is not None:
        return norms
    events = event_files.find_event_files(folder)
    if events:
        return event_files.read_event_norms(path, events, step)
    problem = "contains no logs, gradients or dump"
    if logs:
        problem = f"none of {len(logs)} logs contains local norms"
    raise DumpError(f"{path}: {problem}; expected {printed_text.EXPECTED}")


def _read_file(file: Path, path: str, step: int | None, rules: Rules) -> Norms:
    if event_files.find_event_files(file):
        return event_files.read_event_norms(path, [file], step)
    if not _is_text(file):
        return gradient_files.read_gradients(path, step, rules)
    monitor_files = msprobe_monitor.find_monitor_files(file)
    if monitor_files:
        return msprobe_monitor.read_monitor_norms(path, monitor_files, step)
    norms = printed_text.read_printed_norms(path, [file], step)
    if norms is not None:
        return norms
    parts = dump.find_dump_parts(path)
    if parts:
        return dump.read_dump_norms(path, parts, step, rules)
    raise DumpError(f"{path}: contains no gradient norms; expected {printed_text.EXPECTED}")


def _is_text(file: Path) -> bool:
    """Whether a file is text: its first bytes contain no zero, and are those of no archive."""
    head = read_head(file, _HEAD_SIZE)
    return b"\0" not in head and not head.startswith(_BINARY_MAGIC)
