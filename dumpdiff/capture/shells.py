"""Variables as text that a shell, a container or a batch system takes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping

from ..model.errors import DumpError

Values = Mapping[str, str]


def format_for_bash(values: Values) -> str:
    """For ``eval "$(…)"`` in sh, bash and zsh; the semicolons let it work without the quotes too."""
    return "".join(f"export {name}={shlex.quote(value)};\n" for name, value in values.items())


def format_for_fish(values: Values) -> str:
    """For ``dumpdiff env --shell fish | source``."""
    return "".join(f"set -gx {name} {_quote_for_fish(value)};\n" for name, value in values.items())


def format_as_json(values: Values) -> str:
    """One object, such as a launcher's configuration takes."""
    return json.dumps(dict(values), indent=1) + "\n"


def format_for_docker(values: Values) -> str:
    """Options of ``docker run``, one to a line. Raises DumpError for a value that only a shell's quotes could hold."""
    for name, value in values.items():
        if any(letter.isspace() for letter in value):
            raise DumpError(
                f"{name}={value!r} has a space, which an option of docker run cannot hold; rename the folder"
            )
    return "".join(f"--env {name}={value}\n" for name, value in values.items())


def format_for_slurm(values: Values) -> str:
    """The option of sbatch and srun that adds to the environment. Raises DumpError for a value that it cannot hold."""
    for name, value in values.items():
        if any(letter in ", \t\n'\"" for letter in value):
            raise DumpError(
                f"{name}={value!r} cannot stand in Slurm's --export; set it in the batch script"
            )
    return f"--export=ALL,{','.join(f'{name}={value}' for name, value in values.items())}\n"


SHELLS: dict[str, Callable[[Values], str]] = {
    "bash": format_for_bash,
    "fish": format_for_fish,
    "json": format_as_json,
    "docker": format_for_docker,
    "slurm": format_for_slurm,
}


def _quote_for_fish(value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"
