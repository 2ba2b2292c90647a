"""Writer of a plan into a folder.

Each file is written completely or not at all, so an interrupted conversion can be resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..checkpoints import Checkpoint
from ..checkpoints.memory_map import RELEASE_AFTER
from ..checkpoints.torch_dist import METADATA
from ..model.errors import DumpError
from ..model.input_files import read_input_text
from . import mindspore_writer, safetensors_writer, torch_dist_writer, torch_writer
from .plan import File, Plan

#: File in a folder that is being written, with a fingerprint of the conversion; removed at the end.
JOURNAL = ".dumpdiff-convert.json"
_PART_SUFFIX = ".part"
#: Entries next to the model in a file of Megatron-LM: megatron/training/checkpointing.py.
_MEGATRON_STATE = {"checkpoint_version": 3.0, "iteration": 0}


def check_folder_is_free(folder: Path, resume: bool) -> None:
    """Raise DumpError unless the folder is empty or new.

    With ``resume`` it may also hold an interrupted conversion.
    """
    if folder.exists() and not folder.is_dir():
        raise DumpError(f"{folder}: is a file; give a folder that does not exist yet")
    children = list(folder.iterdir()) if folder.is_dir() else []
    if not children:
        return
    is_interrupted = (folder / JOURNAL).is_file()
    if not resume:
        hint = "; --resume continues it" if is_interrupted else ""
        raise DumpError(f"{folder}: exists, nothing is overwritten; give another folder{hint}")
    if not is_interrupted:
        raise DumpError(f"{folder}: holds no interrupted conversion; give another folder")


def write_plan(
    plan: Plan,
    source: Checkpoint,
    folder: Path,
    resume: bool,
    report_share: Callable[[float], None],
) -> int:
    """Write all files of a plan, and return how many of them existed.

    Files exist only with ``resume``; they are not written again. Raises DumpError if the folder
    is in use (see :func:`check_folder_is_free`), the interrupted conversion was another one, or
    something cannot be written.
    """
    check_folder_is_free(folder, resume)
    journal = folder / JOURNAL
    content = json.dumps({"conversion": _compute_fingerprint(plan, source)})
    try:
        if resume and journal.is_file():
            if read_input_text(journal) != content:
                raise DumpError(
                    f"{folder}: the conversion there was of another source or with other options"
                )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            journal.write_text(content, encoding="utf-8")
        n_reused_files = _write_files(plan, source, folder, report_share)
        journal.unlink()
    except OSError as error:
        raise DumpError(
            f"{error.filename or folder}: cannot be written ({error.strerror})"
        ) from error
    return n_reused_files


def _write_files(
    plan: Plan, source: Checkpoint, folder: Path, report_share: Callable[[float], None]
) -> int:
    """Write the files that do not exist, and return how many existed."""
    n_written = n_held = n_reused_files = 0

    def count_bytes(n_bytes: int) -> None:
        nonlocal n_written, n_held
        n_written += n_bytes
        n_held += n_bytes
        if n_held > RELEASE_AFTER:
            n_held = 0
            source.release()
        report_share(n_written / max(1, plan.size))

    for file in plan.files:
        path = folder / file.name
        if path.is_file():
            n_reused_files += 1
            count_bytes(file.size)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + _PART_SUFFIX)
        _write_file(file, part, count_bytes)
        os.replace(part, path)
    return n_reused_files


def _write_file(file: File, path: Path, report_bytes: Callable[[int], None]) -> None:
    if file.text is not None:
        path.write_bytes(file.text.encode() if isinstance(file.text, str) else file.text)
    elif file.name.endswith(METADATA):
        torch_dist_writer.write_files(path, file.tensors, report_bytes)
    elif file.arguments is not None:
        torch_writer.write_file(path, file.chunks, _MEGATRON_STATE, file.arguments, report_bytes)
    elif file.name.endswith(mindspore_writer.SUFFIX):
        mindspore_writer.write_file(path, file.tensors, report_bytes)
    else:
        safetensors_writer.write_file(path, file.tensors, report_bytes)


def _compute_fingerprint(plan: Plan, source: Checkpoint) -> str:
    """Return a hash of everything that decides which bytes are written."""
    digest = hashlib.sha256()
    source_files = {extent.file for entry in source.entries for extent in entry.extents}
    for name in sorted(source_files):
        status = (source.root / name).stat()
        digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
    for file in plan.files:
        digest.update(repr((file.name, file.text, file.arguments)).encode())
        for tensor in file.tensors:
            attributes = (
                tensor.name,
                tensor.dtype,
                tensor.shape,
                tensor.sources,
                tensor.transposed,
            )
            digest.update(repr(attributes).encode())
            for rows in tensor.parts:
                digest.update(rows.order.tobytes())
    return digest.hexdigest()
