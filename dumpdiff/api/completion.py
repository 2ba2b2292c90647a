"""Shell completion of the command line."""

from __future__ import annotations

import click

#: Read by the shell's function when it calls dumpdiff for its completions.
COMPLETE_VARIABLE = "_DUMPDIFF_COMPLETE"


def completion(shell: str) -> str:
    """Return the script that makes a shell complete the names of commands, options and files.

    Parameters
    ----------
    shell
        ``bash`` (4.4 or newer), ``zsh`` or ``fish``.

    Raises
    ------
    KeyError
        If the shell is another one.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise KeyError(shell)
    command = click.Command("dumpdiff")
    return completion_class(command, {}, "dumpdiff", COMPLETE_VARIABLE).source()
