"""Files of a dump folder: candidates for a dump's index file, and whole tensors by name.

Nothing outside the dump folder is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.input_files import FolderEntries, ignore_error, iterate_folders, read_head
from ..tensor_files import torch_pt
from ..tensor_files.npy import open_array, resolve_inside

#: Files of whole tensors. A dump has many of them, and none is the index file of a dump.
TENSOR_SUFFIXES = (".npy", ".pt", ".bin", ".pth", ".ckpt", ".safetensors")

_MAX_TEXT_FILES = 300_000  #: each is opened; a run of 1,000 ranks and 50 steps has 200,000
_MAX_LEVELS_UP = 4  #: folders above a file where its ``step`` or ``rank`` folder is looked for


@dataclass(frozen=True)
class Listing:
    """What one search of a folder, or of a single file, found for all formats."""

    path: Path  #: that was searched
    #: sorted; of a single file, its folder with no other file
    folders: tuple[FolderEntries, ...]
    index_files: Mapping[str, list[Path]]  #: format -> its index files, sorted by folder and name


def search(path: Path, tests: Mapping[str, Callable[[bytes], bool]]) -> Listing:
    """Search a folder once, or judge a single file, for all formats.

    ``tests`` has, for each format with an index file, whether a file that begins like this is one.
    Each file is opened once, and its first 64 KiB are what a test gets. Raises DumpError if there
    are too many files.
    """
    is_file = path.is_file()
    single_file = FolderEntries(path.parent, [], [path.name])
    folders = (single_file,) if is_file else tuple(iterate_folders(path))
    index_files: dict[str, list[Path]] = {name: [] for name in tests}
    for file in [path] if is_file else _select_text_files(path, folders):
        head = read_head(file)
        for name, is_index_file in tests.items():
            if is_index_file(head):
                index_files[name].append(file)
    return Listing(path, folders, index_files)


def find_text_files(
    path: Path, on_error: Callable[[OSError], object] = ignore_error
) -> Iterator[Path]:
    """Yield the file itself, or every file below the folder that may be the index file of a dump.

    The order is sorted by folder and name. ``on_error`` is called with why a folder cannot be
    read. Raises DumpError if there are too many files.
    """
    if path.is_file():
        return iter([path])
    return _select_text_files(path, iterate_folders(path, on_error))


def _select_text_files(path: Path, folders: Iterable[FolderEntries]) -> Iterator[Path]:
    n_files = 0
    for folder, _, names in folders:
        for name in names:
            if name.endswith(TENSOR_SUFFIXES):
                continue
            n_files += 1
            if n_files > _MAX_TEXT_FILES:
                raise DumpError(
                    f"{path}: holds more than {_MAX_TEXT_FILES:,} files that may be a dump; "
                    "give the folder of one dump"
                )
            yield folder / name


def is_pickle(path: Path) -> bool:
    """Whether a file is a binary pickle (protocol 2 to 5), by its first two bytes.

    Nothing is loaded.
    """
    start = read_head(path, 2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def find_folder_number(path: Path, prefix: str) -> int | None:
    """Return N of the nearest folder ``{prefix}N`` above the file, such as ``step0``."""
    folders = path.absolute().parts[:-1]
    for folder in reversed(folders[-_MAX_LEVELS_UP:]):
        digits = folder.removeprefix(prefix)
        if digits != folder and digits.isdecimal():
            return int(digits)
    return None


def load_tensor(root: Path, name: str) -> AnyArray:
    """Load the whole tensor in ``root / name``, memory-mapped where possible, bfloat16 as float32.

    Raises DumpError if the file is outside ``root``, is missing, or is neither a NumPy nor a
    torch file.
    """
    path = resolve_inside(root, name)
    if not path.is_file():
        raise DumpError(f"{path}: no such tensor file; was the folder copied completely?")
    is_zip = read_head(path, 4) == b"PK\x03\x04"
    return torch_pt.load_torch_tensor(path) if is_zip else open_array(path)
