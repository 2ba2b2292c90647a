"""Writing a plan into a folder: file after file, each whole or not there, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..checkpoints import Checkpoint
from ..model.errors import DumpError
from . import safetensors_writer, torch_writer
from .plan import File, Plan

#: Says of a folder that it is being written, and from what; gone when everything is there.
JOURNAL = ".dumpdiff-convert.json"
_PART = ".part"
#: Beside the model in a file of Megatron-LM: megatron/training/checkpointing.py.
_BESIDE = {"checkpoint_version": 3.0, "iteration": 0}
#: After so many bytes read, the memory of mapped files is given back.
_RELEASE = 64 << 20


def check_folder_is_free(folder: Path, resume: bool) -> None:
    """Raise DumpError if the folder holds anything, unless it is a conversion that was interrupted and goes on."""
    if folder.exists() and not folder.is_dir():
        raise DumpError(f"{folder}: is a file; give a folder that does not exist yet")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    interrupted = (folder / JOURNAL).is_file()
    if not resume:
        hint = "; --resume goes on with it" if interrupted else ""
        raise DumpError(f"{folder}: exists, nothing is overwritten; give another folder{hint}")
    if not interrupted:
        raise DumpError(f"{folder}: holds no interrupted conversion; give another folder")


def write_plan(
    plan: Plan, source: Checkpoint, folder: Path, resume: bool, done: Callable[[float], None]
) -> int:
    """Write all files of a plan, or with ``resume`` those that are not there yet; how many were.

    Raises DumpError if the folder is in use (see :func:`check_free`), the interrupted conversion was another one, or
    something cannot be written.
    """
    check_folder_is_free(folder, resume)
    journal = json.dumps({"conversion": _fingerprint(plan, source)})
    try:
        if resume and (folder / JOURNAL).is_file():
            if (folder / JOURNAL).read_text(encoding="utf-8") != journal:
                raise DumpError(
                    f"{folder}: the conversion there was of another source or with other options"
                )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / JOURNAL).write_text(journal, encoding="utf-8")
        kept = _files(plan, source, folder, done)
        (folder / JOURNAL).unlink()
    except OSError as error:
        raise DumpError(
            f"{error.filename or folder}: cannot be written ({error.strerror})"
        ) from error
    return kept


def _files(plan: Plan, source: Checkpoint, folder: Path, done: Callable[[float], None]) -> int:
    """How many files were there already."""
    written = held = kept = 0

    def count(size: int) -> None:
        nonlocal written, held
        written, held = written + size, held + size
        if held > _RELEASE:
            held = 0
            source.release()
        done(written / max(1, plan.size))

    for file in plan.files:
        path = folder / file.name
        if path.is_file():
            kept += 1
            count(file.size)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + _PART)
        _write(file, part, count)
        os.replace(part, path)
    return kept


def _write(file: File, path: Path, done: Callable[[int], None]) -> None:
    if file.text is not None:
        path.write_text(file.text, encoding="utf-8")
    elif file.arguments is not None:
        torch_writer.write_file(path, file.tensors, _BESIDE, file.arguments, done)
    else:
        safetensors_writer.write_file(path, file.tensors, done)


def _fingerprint(plan: Plan, source: Checkpoint) -> str:
    """Of everything that decides which bytes are written."""
    told = hashlib.sha256()
    for name in sorted({extent.file for entry in source.entries for extent in entry.extents}):
        found = (source.root / name).stat()
        told.update(repr((name, found.st_size, found.st_mtime_ns)).encode())
    for file in plan.files:
        told.update(repr((file.name, file.text, file.arguments)).encode())
        for tensor in file.tensors:
            told.update(
                repr(
                    (tensor.name, tensor.dtype, tensor.shape, tensor.sources, tensor.transposed)
                ).encode()
            )
            for rows in tensor.parts:
                told.update(rows.order.tobytes())
    return told.hexdigest()
