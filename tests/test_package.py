"""The package as a library: what it offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dumpdiff


def run_python(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = run_python("import sys, dumpdiff; print(*sys.modules)").split()
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
def test_every_offered_name_exists(name: str) -> None:
    assert run_python(f"import dumpdiff; print(hasattr(dumpdiff, {name!r}))") == "True\n"


@pytest.mark.parametrize("name", ["align", "read"])
def test_functions_stay_functions_on_the_second_use(name: str) -> None:
    twice = f"import dumpdiff; print(callable(dumpdiff.{name}), callable(dumpdiff.{name}))"
    assert run_python(twice) == "True True\n"


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'diverge'"):
        dumpdiff.diverge  # noqa: B018
