"""Environment variables as text for a shell, a container or a batch system."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping

from ..model.errors import DumpError

Values = Mapping[str, str]

#: Letters and marks that no shell interprets, also with eval; or numbers in brackets, as of VLOG_v.
_PLAIN_VALUE = re.compile(r"[\w@%+=:,./-]*|\([\d,]+\)")


def format_for_bash(values: Values) -> str:
    """Return text for ``eval "$(…)"`` in sh, bash and zsh.

    With the semicolons it also works without the quotes.
    """
    return "".join(f"export {name}={shlex.quote(value)};\n" for name, value in values.items())


def format_for_fish(values: Values) -> str:
    """Return text for ``dumpdiff env --shell fish | source``."""
    return "".join(f"set -gx {name} {_quote_for_fish(value)};\n" for name, value in values.items())


def format_as_json(values: Values) -> str:
    """Return one JSON object, as in the configuration of a launcher."""
    return json.dumps(dict(values), indent=1) + "\n"


def format_for_docker(values: Values) -> str:
    """Return options of ``docker run``, one per line.

    Raises DumpError for a value with a character that a shell would interpret: the options stand
    in a command without quotes.
    """
    for name, value in values.items():
        if not _PLAIN_VALUE.fullmatch(value):
            raise DumpError(
                f"{name}={value!r} has a character that a shell interprets; rename the folder"
            )
    return "".join(f"--env {name}={value}\n" for name, value in values.items())


def format_for_slurm(values: Values) -> str:
    """Return the option of sbatch and srun that adds to the environment.

    Raises DumpError for a value with a comma, or with a character that a shell would interpret.
    """
    for name, value in values.items():
        if "," in value or not _PLAIN_VALUE.fullmatch(value):
            raise DumpError(
                f"{name}={value!r} cannot be written in Slurm's --export; "
                "set it in the batch script"
            )
    assignments = ",".join(f"{name}={value}" for name, value in values.items())
    return f"--export=ALL,{assignments}\n"


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
