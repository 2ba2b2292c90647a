"""``dumpdiff weights``: compare two checkpoints, unless the first word is another command."""

from __future__ import annotations

from importlib import import_module

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
        """Put ``compare`` in front of anything that is not a command, also of --help."""
        if not args or args[0] not in COMMANDS:
            args = ["compare", *args]
        return super().parse_args(ctx, args)


@click.command(cls=_Weights, add_help_option=False)
def weights() -> None:
    """Compare two checkpoints, whatever their formats and layouts."""
