"""Read the settings of a run from whatever holds them; the kind of a file follows from its keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..model.errors import DumpError
from ..model.input_files import open_input_file, read_stream
from .arguments import has_arguments, read_arguments
from .document import is_document, read_document
from .launch_commands import ScriptFile
from .launch_script import read_launch
from .model_config import add_model_config
from .settings import Settings

_MAX_BYTES = 64 << 20  #: that are read; a log prints its arguments at the beginning
_HEAD = 4096  #: characters in which a zero byte means a binary file
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
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
    script = _find_script(path)
    file = script.path
    if file.is_dir():
        raise DumpError(f"{path}: is a folder; give the YAML, launch script or log of the run")
    if not file.exists():
        raise DumpError(f"{path}: there is no such file")
    with open_input_file(file) as stream:
        text = read_stream(stream, _MAX_BYTES).decode("utf-8", errors="replace")
    if "\0" in text[:_HEAD]:
        raise DumpError(f"{path}: is binary; expected a YAML, a launch script, a log or args.json")
    settings = _parse_text(text, script)
    if model is not None:
        settings = add_model_config(settings, Path(model))
    return replace(settings, version=version) if version else settings


def resolve_command(command: str, folder: Path) -> str | None:
    """Return a command that starts a script of ``folder`` with its path, None if it is none.

    >>> resolve_command("bash llama_megatron.sh dsw 8B", Path("tests/samples"))
    'bash tests/samples/llama_megatron.sh dsw 8B'
    """
    words = _split_command(command)
    index = _locate_script(words)
    if index >= len(words) or not (folder / words[index]).is_file():
        return None
    words[index] = str(folder / words[index])
    return shlex.join(words)


def _locate_script(words: Sequence[str]) -> int:
    """Return the position of a script behind ``NAME=value`` and ``bash``."""
    index = 0
    while index < len(words) and _ASSIGNMENT.match(words[index]):
        index += 1
    is_shell = index < len(words) and words[index] in _SHELLS
    return index + 1 if is_shell else index


def _split_command(command: str) -> list[str]:
    """Return the words of a command, none if a quote is not closed."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _find_script(path: str | Path) -> ScriptFile:
    """Return a file, and how it is started if ``path`` is a command that starts a script.

    >>> script = _find_script("TP=2 bash tests/samples/llama_megatron.sh dsw 8B")
    >>> script.file, script.arguments, script.variables
    ('llama_megatron.sh', ('dsw', '8B'), {'TP': '2'})
    """
    file = Path(path)
    if file.exists() or " " not in str(path):
        return ScriptFile(file, file.name)
    words = _split_command(str(path))
    index = _locate_script(words)
    if index >= len(words) or not Path(words[index]).is_file():
        return ScriptFile(file, file.name)
    variables = {}
    for word in words[:index]:
        name, equals, value = word.partition("=")
        if equals:
            variables[name] = value
    script = Path(words[index])
    return ScriptFile(script, script.name, tuple(words[index + 1 :]), variables)


def _parse_text(text: str, script: ScriptFile) -> Settings:
    path = script.path
    if is_document(text, path):
        return read_document(text, path)
    if has_arguments(text):
        return read_arguments(text, str(path), path.name)
    return read_launch(text, script)
