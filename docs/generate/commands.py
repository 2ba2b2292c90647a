"""Write the page docs/commands.md: every command next to its function, from the command line and the library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import click
from tables import format_code, format_table

import dumpdiff
from dumpdiff import cli

_INTRODUCTION = """\
# Commands

Every command is a function of the library with the same name and options. `make reference` writes this page from both.
[The library's page](library.md) describes parameters, return values and errors.
"""


def list_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its full name."""
    context = click.Context(cli.main)
    for name in cli.main.list_commands(context):
        command = cli.main.get_command(context, name)
        if isinstance(command, click.Group):
            for sub_name in command.list_commands(context):
                sub_command = command.get_command(context, sub_name)
                assert sub_command is not None
                yield f"{name} {sub_name}", sub_command
        else:
            assert command is not None
            yield name, command


def find_function(name: str) -> Callable[..., Any]:
    """Return the function of a command: ``dump-config check`` is ``dumpdiff.dump_config.check``."""
    function: Any = dumpdiff
    for part in name.split():
        function = getattr(function, part.replace("-", "_"))
    return function  # type: ignore[no-any-return]


def build_page() -> str:
    """Return the whole page."""
    return "\n".join([_INTRODUCTION, *(_build_section(*command) for command in list_commands())])


def _build_section(name: str, command: click.Command) -> str:
    find_function(name)  # a command without its function has no section
    function_path = f"dumpdiff.{name.replace('-', '_').replace(' ', '.')}"
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    options = [param for param in command.params if isinstance(param, click.Option)]
    metavars = [argument.make_metavar(click.Context(command)) for argument in arguments]
    usage = " ".join(["dumpdiff", name, *metavars, "[OPTIONS]"])
    parts = [
        f"## {name}\n",
        f"{_first_paragraph(command.help or '')}\n",
        f"    {usage}\n",
        f"In Python: [`{function_path}`](library.md#{function_path})\n",
        format_table(("option", "what it does"), [_format_option(option) for option in options]),
    ]
    examples = _find_examples(command.epilog or "")
    if examples:
        parts.append(f"Examples:\n\n{examples}")
    return "\n".join(parts)


def _first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _format_option(option: click.Option) -> tuple[str, str]:
    names = ", ".join([*option.opts, *option.secondary_opts])
    metavar = ""
    if not option.is_flag:
        metavar = " " + option.make_metavar(click.Context(click.Command("")))
        metavar = metavar.replace("INTEGER RANGE", "N").replace("FLOAT RANGE", "X")
    text = option.help or ""
    default = option.default
    if option.show_default is True and isinstance(default, (str, int, float)):
        text = f"{text} Default: {default}."
    return format_code(f"{names}{metavar}"), text


def _find_examples(epilog: str) -> str:
    lines = inspect.cleandoc(epilog.replace("\b", "")).splitlines()
    examples: list[str] = []
    is_inside = False
    for line in lines:
        if line.strip() == "Examples:":
            is_inside = True
        elif is_inside and line.strip():
            if not line.startswith("  "):
                break
            examples.append(f"    {line.strip()}\n")
    return "".join(examples)


if __name__ == "__main__":
    print(build_page(), end="")
