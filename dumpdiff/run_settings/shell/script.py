"""Read a script: the commands that it would call, and what it takes from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...model.errors import DumpError
from ...model.input_files import read_input_text
from . import syntax
from .expansion import Piece
from .interpreter import Call, Interpreter
from .words import Word, tokenize

_MAX_CHARACTERS = 1 << 20  #: of a script; launch scripts have some thousand
#: A sourced file is read if it is in the folder of the script, or below the folder above it.
_LEVELS_ABOVE = 2


@dataclass(frozen=True)
class Script:
    """All commands of a script, in order."""

    calls: tuple[Call, ...]
    sourced: tuple[Word, ...]  #: files that the script reads and that were not read
    parameters: tuple[str, ...] = ()  #: arguments that it reads ('1', '@') and was not given


def read_script(
    text: str,
    path: Path | None = None,
    arguments: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Script:
    """Read a script without running it.

    ``arguments`` are ``$1`` and the following, None if it is not known how the script is started.
    ``variables`` are set before it starts, and with arguments no others are. Files that it sources
    are read if they lie next to ``path``.

    Raises DumpError if it is longer than 1 MiB, or if its expansions grow or nest without end.
    """
    if len(text) > _MAX_CHARACTERS:
        raise DumpError(
            f"a script of {len(text)} characters; expected a launch script of at most"
            f" {_MAX_CHARACTERS}"
        )
    interpreter = Interpreter(lambda name: _read_sourced_file(name, path))
    shell_variables = interpreter.variables
    if path is not None:
        shell_variables.folder = str(path.parent)
        for name in ("0", "BASH_SOURCE"):
            shell_variables.assign(name, [Piece(str(path), 0, False)], False, True, 0)
    for name, value in (variables or {}).items():
        shell_variables.assign(name, [Piece(value, 0, False)], False, True, 0)
        interpreter.exported.add(name)
    if arguments is not None:
        shell_variables.has_environment = True
        shell_variables.set_arguments([[Piece(argument, 0, False)] for argument in arguments], 0)
    try:
        interpreter.run(syntax.parse(tokenize(text)))
    except RecursionError:
        raise DumpError(
            "expansions within expansions without end; expected a launch script"
        ) from None
    parameters = tuple(sorted(shell_variables.missing_arguments))
    return Script(tuple(interpreter.calls), tuple(interpreter.sourced), parameters)


def _read_sourced_file(name: str, script: Path | None) -> tuple[str, str] | None:
    """Return the text and the name of a file that a script sources, None if it is not near it."""
    if script is None:
        return None
    folder = script.parent.resolve()
    file = (folder / name).resolve()
    roots = [folder, *folder.parents][:_LEVELS_ABOVE]
    if not file.is_file() or not any(file.is_relative_to(root) for root in roots):
        return None
    try:
        return read_input_text(file, _MAX_CHARACTERS, errors="replace"), file.name
    except OSError:
        return None
