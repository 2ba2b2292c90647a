"""The library is the command line: every command has its function, every option its parameter."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click
import pytest

import dumpdiff

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "generate"))

from commands import find_function, list_commands

#: Options that choose what is printed or where files go; in the library these are methods of the
#: returned object.
PRESENTATION = {
    "as_json",
    "brief",
    "case_file",
    "csv_file",
    "force",
    "github_file",
    "html_file",
    "init",
    "json_file",
    "junit_file",
    "lang",
    "limit",
    "markdown_file",
    "output_file",
    "phase",
    "quiet",
    "rules_out",
    "svg_file",
    "tool",
    "verbose",
}
#: Presentation in one command, an input in another.
PRESENTATION_OF = {
    "align": {"scope"},
    "env": {"explain", "shell"},
    "narrow": {"until_cause"},
    # A script is run as a whole; in the library, the body of a with statement is.
    "record": {"script", "arguments"},
    # Of graft, which is a function of its own.
    "snippet": {"result", "finding", "place"},
}

#: Parameters without an option: callbacks, and what a command line cannot express.
LIBRARY_ONLY = {"progress"}
LIBRARY_ONLY_OF = {
    "align": {"explained"},
    "dump-config mindspore": {"output"},
    "record": {"model"},
    "report": {"html", "markdown", "junit", "csv"},
    "rules suggest": set(),
    "serve": {"ready"},
}


COMMANDS = dict(list_commands())

#: ``1`` is a text on a command line; ``-`` is standard output, which has no name to put into a
#: script. A recorded script is a whole training, and a with statement holds the steps to record.
OTHER_DEFAULTS = {
    ("explain", "finding"),
    ("dump-config msprobe", "output"),
    ("record", "steps"),
    ("snippet", "folder"),
}

#: Defaults of options; click has markers of its own for "no default".
PLAIN = (bool, int, float, str, list, tuple)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_parameter(name: str) -> None:
    presentation = PRESENTATION | PRESENTATION_OF.get(name, set())
    options = {str(param.name) for param in COMMANDS[name].params} - presentation
    parameters = set(inspect.signature(find_function(name)).parameters)
    library_only = LIBRARY_ONLY | LIBRARY_ONLY_OF.get(name, set())
    assert options - {"help"} == parameters - library_only


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_of_commands_and_functions_are_the_same(name: str) -> None:
    parameters = inspect.signature(find_function(name)).parameters
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
    function = find_function(name)
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
