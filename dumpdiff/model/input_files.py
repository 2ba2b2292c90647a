"""Input files and folders: only regular files are opened, and no search is endless.

A folder that a user names may hold pipes, sockets and devices, links to anything, and more files
than anybody can wait for. Every input of every command is opened here. What cannot be read is an
OSError that names the file and the reason.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .errors import DumpError

#: Bytes of a file that is read as a whole; protobuf has the same limit, and nothing larger is text.
MAX_BYTES = 1 << 31
#: Bytes of a file that a person writes: settings, rules, a case, a configuration.
MAX_WRITTEN_BYTES = 1 << 24
_CHUNK = 1 << 20  #: bytes that are read of a stream at once
STANDARD_INPUT = "-"  #: in the place of a path
#: Entries of all folders below one: a run of 1,000 ranks has a million files of tensors.
_MAX_ENTRIES = 5_000_000

#: A pipe without a writer must not block; a regular file never does.
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS = (
    (stat.S_ISDIR, "is a folder, not a file"),
    (stat.S_ISFIFO, "is a pipe, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)


def check_input(path: str | Path) -> None:
    """Raise DumpError unless ``path`` is a folder or a regular file, and can be read."""
    try:
        if Path(path).is_dir():
            os.scandir(path).close()
        else:
            open_input_file(path).close()
    except FileNotFoundError:
        raise DumpError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error


def open_input_file(path: str | Path, *, is_buffered: bool = True) -> BinaryIO:
    """Open a regular file to read its bytes.

    A file of size 0 is read as empty: some files of the kernel have content without a size, and
    may block. Raises OSError, also for a folder, a pipe, a socket or a device.
    """
    descriptor, size = _open_descriptor(path)
    if size == 0:
        os.close(descriptor)
        descriptor = os.open(os.devnull, _OPEN_FLAGS)
    # Not open(), which asks the system again what was just asked: a dump has thousands of files.
    stream = io.FileIO(descriptor)
    return io.BufferedReader(stream) if is_buffered else stream


def _open_descriptor(path: str | Path) -> tuple[int, int]:
    """Return the descriptor of a regular file that was opened, and its size. Raises OSError."""
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "is a socket, not a file", str(path)) from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _describe_kind(status.st_mode), str(path))
    return descriptor, status.st_size


def _describe_kind(mode: int) -> str:
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "is not a regular file")


def read_head(path: str | Path, size: int = 65536) -> bytes:
    """Return the first ``size`` bytes of a regular file; empty if it cannot be read.

    Folders are searched with it, so it is fast.
    """
    try:
        descriptor, length = _open_descriptor(path)
    except OSError:
        return b""
    try:
        return os.read(descriptor, min(size, length))
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def open_input_stream(path: str | Path) -> BinaryIO:
    """Open a regular file, a pipe, or standard input if ``path`` is '-', to read it once.

    A pipe blocks until its writer is done. Raises OSError as :func:`open_input_file` does.
    """
    if str(path) == STANDARD_INPUT:
        return open(os.dup(0), "rb")
    if Path(path).is_fifo():
        return open(path, "rb")
    return open_input_file(path)


def open_input_text(path: str | Path, *, newline: str | None = None) -> io.TextIOWrapper:
    """Open a regular file to read its lines as UTF-8; other bytes are replaced.

    Raises OSError as :func:`open_input_file` does.
    """
    stream = open_input_file(path)
    return io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline=newline)


def read_input_bytes(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return all bytes of a regular file, of at most ``max_bytes``.

    Raises OSError as :func:`open_input_file` does, and if the file is larger.
    """
    with open_input_file(path) as stream:
        # A file that grows meanwhile is read as it was; read() makes room for what it is asked for.
        size = os.fstat(stream.fileno()).st_size
        if size > max_bytes:
            message = f"has more than {max_bytes:,} bytes; is it the right file?"
            raise OSError(errno.EFBIG, message, str(path))
        return stream.read(size)


def read_stream(stream: BinaryIO, max_bytes: int) -> bytes:
    """Return the first ``max_bytes`` of a stream of any length. Raises OSError."""
    chunks = []
    n_remaining = max_bytes
    while n_remaining:
        chunk = stream.read(min(_CHUNK, n_remaining))
        if not chunk:
            break
        chunks.append(chunk)
        n_remaining -= len(chunk)
    return b"".join(chunks)


def read_input_text(path: str | Path, max_bytes: int = MAX_BYTES, *, errors: str = "strict") -> str:
    """Return the text of a regular UTF-8 file with line ends as ``\\n``.

    Raises OSError as :func:`read_input_bytes` does, and UnicodeDecodeError.
    """
    text = read_input_bytes(path, max_bytes).decode("utf-8", errors=errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_plain_name(name: str) -> bool:
    """Whether a name taken from a dump is a single file name: no folder, no ``..``, no NUL."""
    if name in ("", ".", ".."):
        return False
    return not any(separator in name for separator in ("/", "\\", "\0"))


class FolderEntries(NamedTuple):
    """What a folder holds: names, sorted. Pipes, sockets and devices are left out."""

    folder: Path
    subfolders: list[str]  #: those that remain in it are searched
    files: list[str]  #: regular files, and links to them


def ignore_error(error: OSError) -> None:
    """Leave out what cannot be read."""


def iterate_folders(
    root: str | Path, on_error: Callable[[OSError], object] = ignore_error
) -> Iterator[FolderEntries]:
    """Yield a folder and all folders below it, sorted by name.

    The caller may remove names from ``subfolders``, which are then not searched. Links to folders
    are not followed. A folder that cannot be read or is on another file system, and a link to a
    file that is not below ``root``, are left out, and ``on_error`` is called with the reason.

    Raises DumpError if there are too many entries.
    """
    device = None
    real_root = Path(root).resolve()
    n_entries = 0
    remaining = [Path(root)]
    while remaining:
        folder = remaining.pop()
        try:
            folder_device = os.stat(folder).st_dev
            device = folder_device if device is None else device
            if folder_device != device:
                message = "is on another file system, which is not searched"
                raise OSError(errno.EXDEV, message, str(folder))
            entries = _list_entries(folder, real_root, on_error)
        except OSError as error:
            on_error(error)
            continue
        n_entries += len(entries.subfolders) + len(entries.files)
        if n_entries > _MAX_ENTRIES:
            raise DumpError(
                f"{root}: holds more than {_MAX_ENTRIES:,} files; give the folder of one dump"
            )
        yield entries
        remaining += [folder / name for name in reversed(entries.subfolders)]


def _list_entries(
    folder: Path, real_root: Path, on_error: Callable[[OSError], object]
) -> FolderEntries:
    """Return what a folder holds. Raises OSError."""
    entries = FolderEntries(folder, [], [])
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                entries.subfolders.append(item.name)
            elif not _is_regular_file(item):
                continue
            elif item.is_symlink() and real_root not in Path(item.path).resolve().parents:
                on_error(OSError(errno.EXDEV, "is a link out of the folder", item.path))
            else:
                entries.files.append(item.name)
    entries.subfolders.sort()
    entries.files.sort()
    return entries


def _is_regular_file(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_file()
    except OSError:  # a link in a circle
        return False
