"""The demo: two complete small runs that come with the package, and a folder to try them in."""

from __future__ import annotations

import io
import tarfile
from importlib import resources
from pathlib import Path

from ..model.errors import DumpError
from .inputs import PathLike

DEMO_FOLDER = "dumpdiff_demo"
_ARCHIVE = "demo.tar.xz"  #: in the folder ``data`` next to this module; fixtures/record_demo.py


def demo(folder: PathLike = DEMO_FOLDER) -> Path:
    """Unpack two runs of one small model, and return their folder.

    ``mindformers`` (the target, MindSpore) and ``megatron`` (the reference, PyTorch) have settings,
    a log, gradient norms, the first batch, a checkpoint, the first steps and a dump of step 1, all
    written by the frameworks. The target divides the attention scores of one layer by the wrong
    number.

    Parameters
    ----------
    folder
        Folder to make. An existing one must be empty.

    Raises
    ------
    DumpError
        If the folder is not empty or cannot be written.
    """
    path = Path(folder)
    content = resources.files(__package__).joinpath("data", _ARCHIVE).read_bytes()
    try:
        if path.exists() and any(path.iterdir()):
            raise DumpError(f"{path}: is not empty; give another folder: dumpdiff demo FOLDER")
        path.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            # without it, Python 3.12 and 3.13 warn; Python before 3.10.12 does not have it
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(path)
    except OSError as error:
        raise DumpError(f"{path}: cannot be written ({error.strerror})") from error
    return path
