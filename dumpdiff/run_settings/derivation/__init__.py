"""Values that follow from several options, and the conditions under which a row has an effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..row_value import SettingsLookup
from ..settings import Framework
from . import megatron, mindformers
from .conditions import BOTH_SIDES, CONDITIONS

__all__ = ["BOTH_SIDES", "CONDITIONS", "find_derivation"]


def find_derivation(name: str, framework: Framework) -> Callable[[SettingsLookup], Any] | None:
    """Return the function ``derive_<name>`` of the framework's family, None if it has none.

    ``name`` is the field ``derive`` of a row of ``rules/settings.yaml``. A family without such a
    function writes the value in one option.
    """
    if not name:
        return None
    family = mindformers if framework == "mindformers" else megatron
    function: Callable[[SettingsLookup], Any] | None = getattr(family, f"derive_{name}", None)
    return function
