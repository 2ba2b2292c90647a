"""Read the settings of a run from whatever holds them; the kind of a file follows from its keys."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from ..model.errors import DumpError
from ..model.input_files import open_input_file, read_stream
from .arguments import has_arguments, read_arguments
from .document import is_document, read_document
from .launch_script import read_launch
from .model_config import add_model_config
from .settings import Settings

_MAX_BYTES = 64 << 20  #: that are read; a log prints its arguments at the beginning
_HEAD = 4096  #: characters in which a zero byte means a binary file
_SHELLS = ("bash", "sh", "zsh", "source", ".")


def read_settings(path: str | Path, version: str = "", model: str | Path | None = None) -> Settings:
    """Read the settings of one run.

    ``path`` is a configuration file (YAML, JSON, TOML), a launch script (which is never run), or a
    log with the arguments it printed. A script that takes arguments is given with them:
    ``"bash run.sh dsw 8B"``. ``version`` is that of the framework, where defaults changed.
    ``model`` is the config.json of the model (or its folder), for launches that take the structure
    from it.

    Raises DumpError if nothing proves that the file holds the settings of a training; the message
    says what it is instead, if that is known.

    """
    file, arguments = _split_command(path)
    if file.is_dir():
        raise DumpError(f"{path}: is a folder; give the YAML, launch script or log of the run")
    if not file.exists():
        raise DumpError(f"{path}: there is no such file")
    with open_input_file(file) as stream:
        text = read_stream(stream, _MAX_BYTES).decode("utf-8", errors="replace")
    if "\0" in text[:_HEAD]:
        raise DumpError(f"{path}: is binary; expected a YAML, a launch script, a log or args.json")
    settings = _parse_text(text, file, arguments)
    if model is not None:
        settings = add_model_config(settings, Path(model))
    return replace(settings, version=version) if version else settings


def _split_command(path: str | Path) -> tuple[Path, tuple[str, ...] | None]:
    """Return a file, and the arguments of the script that it is; None if they are not said.

    >>> _split_command("bash train.sh dsw 8B")
    (PosixPath('train.sh'), ('dsw', '8B'))
    """
    file = Path(path)
    if file.exists() or " " not in str(path):
        return file, None
    try:
        words = shlex.split(str(path))
    except ValueError:
        return file, None
    if words and words[0] in _SHELLS:
        words.pop(0)
    if not words or not Path(words[0]).is_file():
        return file, None
    return Path(words[0]), tuple(words[1:])


def _parse_text(text: str, path: Path, arguments: tuple[str, ...] | None) -> Settings:
    if is_document(text, path):
        return read_document(text, path)
    if has_arguments(text):
        return read_arguments(text, str(path), path.name)
    return read_launch(text, path, path.name, arguments)
