"""``dumpdiff weights``: compare two checkpoints, unless the first word is another command."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path

import click

#: Command -> where it lives. The first is what ``dumpdiff weights A B`` runs.
COMMANDS = {
    "compare": "dumpdiff.cli.weights.compare:compare",
    "convert": "dumpdiff.cli.weights.convert:convert",
}


class _Weights(click.Group):
    """A group whose first command needs no name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``compare`` in front of anything that is not a command, also of --help.

        Raises click.UsageError for a word that is no file and looks like a command.
        """
        if not args or args[0] not in COMMANDS:
            similar_names = difflib.get_close_matches(args[0], COMMANDS, 1, 0.8) if args else []
            if similar_names and not Path(args[0]).exists():
                ctx.fail(
                    f"'{args[0]}' is neither a file nor a command. "
                    f"Did you mean '{similar_names[0]}'?"
                )
            args = ["compare", *args]
        return super().parse_args(ctx, args)


@click.command(cls=_Weights, add_help_option=False)
def weights() -> None:
    """Compare two checkpoints, whatever their formats and layouts."""
