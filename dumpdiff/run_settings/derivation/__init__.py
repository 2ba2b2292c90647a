"""Values that follow from several options, and the conditions under which a row has an effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..row_value import SettingsLookup
from ..settings import Framework
from ..table import COMPLETE_FRAMEWORKS, Row
from . import accelerate, deepspeed, megatron, mindformers, nemo, torchtitan, trainer
from .conditions import BOTH_SIDES, CONDITIONS

__all__ = ["BOTH_SIDES", "CONDITIONS", "find_derivation"]

_MODULES: Mapping[Framework, ModuleType] = {
    "megatron": megatron,
    "swift": megatron,
    "mindformers": mindformers,
    "trainer": trainer,
    "llamafactory": trainer,
    "msswift": trainer,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "nemo": nemo,
    "torchtitan": torchtitan,
}


def find_derivation(row: Row, framework: Framework) -> Callable[[SettingsLookup], Any] | None:
    """Return the function that derives a row in a framework, None if an option says it.

    This is ``derive_<name>`` with the field ``derive`` of the row; in the frameworks of
    ``rules/settings_frameworks.yaml`` the row's own name will do, too.
    """
    name = row.derive
    if not name and framework not in COMPLETE_FRAMEWORKS:
        name = row.name
    module = _MODULES.get(framework)
    function: Callable[[SettingsLookup], Any] | None = getattr(module, f"derive_{name}", None)
    return function
