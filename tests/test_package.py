"""The package as a library: what it offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dumpdiff


def output(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = output("import sys, dumpdiff; print(*sys.modules)").split()
    assert not {
        "numpy",
        "pandas",
        "scipy",
        "networkx",
        "rich",
        "click",
        "torch",
        "mindspore",
    } & set(loaded)


@pytest.mark.parametrize("name", dumpdiff.__all__)
def test_what_is_offered_is_there(name: str) -> None:
    assert output(f"import dumpdiff; print(hasattr(dumpdiff, {name!r}))") == "True\n"


@pytest.mark.parametrize("name", ["align", "read"])
def test_functions_stay_functions_when_asked_for_twice(name: str) -> None:
    twice = f"import dumpdiff; print(callable(dumpdiff.{name}), callable(dumpdiff.{name}))"
    assert output(twice) == "True True\n"


def test_what_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'diverge'"):
        dumpdiff.diverge  # noqa: B018
