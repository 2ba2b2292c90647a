"""Output files: never over an input, and complete under their name or not there at all.

A dump took hours of a cluster, and a checkpoint days. So no output may be an input or lie inside
one, an existing file that dumpdiff did not write stays unless the user insists, and a document gets
its name only when all of it is on the disk.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .errors import DumpError

#: What every document of dumpdiff begins with, by format. Text that a user may have edited, such as
#: a case file or rules, has no signature: it is not replaced without being asked.
_SIGNATURES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rb'\{\s*"[^{}\[\]]{0,200}"dumpdiff_version": "',  # JSON
        rb'<!doctype html>.{0,100}<meta name="generator" content="dumpdiff ',
        rb'(<\?xml[^>]*\?>\s*)?<testsuites name="dumpdiff"',
        rb"<svg [^>]*>\s*<!-- dumpdiff -->",
        rb"target,reference,target_op,target_slot,",  # CSV of pairs
        rb"path,target,reference,evidence,rows,",  # CSV of parameters
        rb"PK\x03\x04.{26}result\.npy",  # complete result
        rb'\{"format": \d+, "result": \{"target": ',  # complete result of a run
    )
)
_SIGNATURE_SIZE = 2048  #: bytes at the beginning of a file that hold its signature
#: What Markdown ends with: its first line is the answer.
_END = re.compile(rb"<sub>dumpdiff [^<]{1,40}</sub>\s*\Z")


def check_output_files(
    files: Iterable[str | Path], inputs: Iterable[str | Path], *, force: bool = False
) -> None:
    """Raise DumpError if a file cannot or must not be written; nothing is written or changed.

    It must not be an input or lie inside one, whatever ``force`` says, and two outputs must not be
    one file; links are followed. With ``force`` it may replace a file that dumpdiff did not write.
    """
    real_inputs = [Path(path).resolve() for path in inputs]
    real_files: dict[Path, str | Path] = {}
    for file in files:
        path = Path(file)
        if path.is_dir():
            raise DumpError(f"{file}: is a folder; give the name of a file to write")
        if not path.parent.is_dir():
            raise DumpError(f"{file}: cannot be written, there is no folder {path.parent}")
        if path.exists() and not path.is_file():
            continue  # a device or a pipe
        real_file = path.resolve()
        _check_not_an_input(file, real_file, real_inputs)
        if real_file in real_files:
            raise DumpError(f"two outputs cannot both be written to {real_files[real_file]}")
        real_files[real_file] = file
        if not force and path.is_file() and not is_replaceable(path):
            raise DumpError(
                f"{file}: exists, and was not written by dumpdiff; "
                "give another name, or --force to replace it"
            )


def check_output_folder(folder: str | Path, inputs: Iterable[str | Path]) -> None:
    """Raise DumpError if a folder cannot be made, or is an input or lies inside one."""
    path = Path(folder)
    for existing in (path, *path.parents):
        if existing.exists() and not existing.is_dir():
            raise DumpError(f"{existing}: is a file; give a folder to write")
    _check_not_an_input(folder, path.resolve(), [Path(item).resolve() for item in inputs])


def _check_not_an_input(name: str | Path, real_path: Path, real_inputs: list[Path]) -> None:
    for real_input in real_inputs:
        if real_path == real_input:
            raise DumpError(f"{name}: is an input; give another name")
        if real_input in real_path.parents and real_input.is_dir():
            raise DumpError(f"{name}: lies inside the input {real_input}; give another folder")


def is_replaceable(path: Path) -> bool:
    """Return whether a file is empty or a document of dumpdiff, so that nothing else is lost."""
    try:
        with path.open("rb") as stream:
            start = stream.read(_SIGNATURE_SIZE)
            stream.seek(max(0, path.stat().st_size - _SIGNATURE_SIZE))
            end = stream.read(_SIGNATURE_SIZE)
    except OSError:
        return False
    has_signature = any(pattern.match(start) for pattern in _SIGNATURES)
    return not start or has_signature or _END.search(end) is not None


def write_output_file(file: Path, content: bytes) -> None:
    """Write a file as :func:`open_output_file` does. Raises DumpError that names the file."""
    with open_output_file(file) as stream:
        stream.write(content)


@contextmanager
def open_output_file(file: str | Path) -> Iterator[IO[bytes]]:
    """Open a file to write bytes to; it gets its name when the body has ended without an error.

    Until then an older file of that name is untouched. The bytes go to a new file in the same
    folder, which is renamed when the disk holds all of it, and removed if anything fails. A device
    or a pipe is written directly.

    Raises DumpError that names the file if writing fails.
    """
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
        stream = part.open("xb")
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DumpError(f"{file}: cannot be written ({error.strerror or error})") from error
