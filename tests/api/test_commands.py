"""The library is the command line: every command has its function, every option its parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

import dumpdiff
from dumpdiff import cli

#: Options that choose what is printed or where files go; in the library these are methods of the
#: returned object.
PRESENTATION = {
    "as_json",
    "case_file",
    "csv_file",
    "html_file",
    "init",
    "json_file",
    "junit_file",
    "limit",
    "markdown_file",
    "output_file",
    "phase",
    "quiet",
    "rules_out",
    "shell",
    "svg_file",
    "tool",
    "verbose",
}
#: Presentation in one command, an input in another.
PRESENTATION_OF = {"align": {"scope"}, "env": {"explain"}}

#: Parameters without an option: callbacks, and what a command line cannot express.
LIBRARY_ONLY = {"progress"}
LIBRARY_ONLY_OF = {
    "align": {"explained"},
    "report": {"html", "markdown", "junit", "csv"},
    "rules suggest": set(),
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its full name."""
    group = cli.main
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for sub_name in command.list_commands(context):
                sub_command = command.get_command(context, sub_name)
                assert sub_command is not None
                yield f"{name} {sub_name}", sub_command
        else:
            yield name, command


def function_of(name: str) -> Callable[..., Any]:
    """The function of a command: ``dump-config check`` is ``dumpdiff.dump_config.check``."""
    function: Any = dumpdiff
    for part in name.split():
        function = getattr(function, part.replace("-", "_"))
    return function


COMMANDS = dict(commands())

#: ``1`` is a text on a command line; ``-`` is standard output, which has no name to put into a
#: script.
OTHER_DEFAULTS = {("explain", "finding"), ("dump-config msprobe", "output")}

#: Defaults of options; click has markers of its own for "no default".
PLAIN = (bool, int, float, str, list, tuple)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_parameter(name: str) -> None:
    presentation = PRESENTATION | PRESENTATION_OF.get(name, set())
    options = {str(param.name) for param in COMMANDS[name].params} - presentation
    parameters = set(inspect.signature(function_of(name)).parameters)
    library_only = LIBRARY_ONLY | LIBRARY_ONLY_OF.get(name, set())
    assert options - {"help"} == parameters - library_only


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_of_commands_and_functions_are_the_same(name: str) -> None:
    parameters = inspect.signature(function_of(name)).parameters
    for option in COMMANDS[name].params:
        parameter = parameters.get(str(option.name))
        if parameter is None or parameter.default is inspect.Parameter.empty:
            continue
        default = option.default if isinstance(option.default, PLAIN) else None
        if isinstance(default, list):
            default = tuple(default)
        if (name, option.name) in OTHER_DEFAULTS:
            continue
        assert default == parameter.default or (not default and not parameter.default)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_is_documented(name: str) -> None:
    function = function_of(name)
    documentation = inspect.getdoc(function) or ""
    for parameter in set(inspect.signature(function).parameters) - LIBRARY_ONLY:
        assert parameter in documentation
    assert "Raises" in documentation


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    for param in COMMANDS[name].params:
        assert isinstance(param, click.Argument) or getattr(param, "help", None)


def test_the_package_lists_what_it_offers() -> None:
    assert set(dumpdiff.__all__) <= set(dir(dumpdiff))
    assert all(hasattr(dumpdiff, name) for name in dumpdiff.__all__)


def test_no_package_hides_a_command() -> None:
    """A package of the same name would replace the function once it is imported."""
    import pkgutil

    modules = {module.name for module in pkgutil.iter_modules(dumpdiff.__path__)}
    assert not modules & set(dumpdiff.__all__)
