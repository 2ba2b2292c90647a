"""``dumpdiff completion SHELL``: print the script, and answer the shell's questions."""

from __future__ import annotations

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from . import options

_SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\b
Install it:
  bash  echo 'eval "$(dumpdiff completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(dumpdiff completion zsh)"' >> ~/.zshrc
  fish  dumpdiff completion fish > ~/.config/fish/completions/dumpdiff.fish

\b
Exit codes:
  0  printed
  2  wrong usage
"""


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("shell", type=click.Choice(_SHELLS), metavar="SHELL")
def completion(shell: str) -> None:
    """Print a script that completes commands, options and files.

    SHELL is bash (4.4 or newer), zsh or fish.
    """
    import dumpdiff

    click.echo(dumpdiff.completion(shell))


class _FilesOtherwise(ShellComplete):
    """What is no command, option or choice is the name of a file."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what click knows; where it knows nothing, let the shell complete files."""
        completions = super().get_completions(args, incomplete)
        if completions or incomplete.startswith("-"):
            return completions
        return [CompletionItem(incomplete, type="file")]


class _Bash(_FilesOtherwise, BashComplete):
    pass


class _Zsh(_FilesOtherwise, ZshComplete):
    pass


class _Fish(_FilesOtherwise, FishComplete):
    pass


def install_completion_classes() -> None:
    """Make click answer the shells with files, too."""
    for completion_class in (_Bash, _Zsh, _Fish):
        add_completion_class(completion_class)
