"""Parse the names of entries in msprobe's dump.json and debug.json (1.0 to 26.2).

Examples: ``Functional.linear.0.forward``, ``Module.layers.0.mlp.MLP.backward.0``, and of a value
that was saved by hand ``hidden.0.debug``.
"""

from __future__ import annotations

from functools import lru_cache
from sys import intern
from typing import NamedTuple

_MODULE_PREFIXES = ("Module.", "Cell.")

#: Ending of the name of a gradient that was saved by hand.
SAVED_GRADIENT = "_grad"
PARAMETER_GRADIENTS = "parameters_grad"  #: kind and type of entries of them


class Call(NamedTuple):
    """The parts of an entry's name but its number. Equal texts are one string for all entries."""

    kind: str  #: Functional.linear, Primitive.MatMul, Module.Linear, parameters_grad
    level: str  #: op or module
    scope: str  #: path of a module, '' for other entries
    entry_type: str  #: forward, backward or parameters_grad


def parse_name(name: str) -> Call | None:
    """Return the parts of an entry's name, None if it has no known form.

    >>> parse_name("Primitive.matmul.MatMul.0.backward")
    Call(kind='Primitive.MatMul', level='op', scope='', entry_type='backward')
    """
    call = _parse_module_name(name) if name.startswith(_MODULE_PREFIXES) else None
    return call or _parse_api_name(name)


def parse_saved_name(name: str) -> Call | None:
    """Return the parts of the name of a value that was saved by hand, None for another form.

    >>> parse_saved_name("hidden_grad.0.debug").entry_type
    'backward'
    """
    front, _, entry_type = name.rpartition(".")
    variable, _, number = front.rpartition(".")
    if entry_type != "debug" or not number.isdecimal() or not variable:
        return None
    if variable.endswith(SAVED_GRADIENT):
        return Call("", "op", "", "backward")
    return Call("", "op", "", "forward")


def name_entry(name: str, call: Call, entry_type: str) -> str:
    """Return the name that the entry of another type has, which belongs to the same call.

    >>> name = "Module.layers.0.mlp.MLP.parameters_grad.1"
    >>> name_entry(name, parse_name(name), "forward")
    'Module.layers.0.mlp.MLP.forward.1'
    """
    if call.level == "op" and call.entry_type != PARAMETER_GRADIENTS:
        return name.removesuffix(call.entry_type) + entry_type
    front, _, number = name.rpartition(".")
    if not number.isdecimal():
        front, number = name, "0"
    return f"{front.removesuffix(call.entry_type)}{entry_type}.{number}"


def _parse_module_name(name: str) -> Call | None:
    """Parse ``Module.{scope}.{class}.{entry_type}.{n}``.

    The number is omitted for a single call.
    """
    front, _, entry_type = name.rpartition(".")
    if entry_type.isdecimal():
        front, _, entry_type = front.rpartition(".")
    if entry_type not in ("forward", "backward", PARAMETER_GRADIENTS):
        return None
    module, _, class_name = front.rpartition(".")
    if not module or not class_name:
        return None
    family, _, scope = module.partition(".")
    scope = intern(scope)
    if entry_type == PARAMETER_GRADIENTS:
        return Call(PARAMETER_GRADIENTS, "op", scope, PARAMETER_GRADIENTS)
    return Call(intern(f"{family}.{class_name}"), "module", scope, intern(entry_type))


def _parse_api_name(name: str) -> Call | None:
    """Parse ``{family}.{api}.{n}.{entry_type}``."""
    front, _, entry_type = name.rpartition(".")
    full_api, _, number = front.rpartition(".")
    return _parse_api(full_api, entry_type) if number.isdecimal() else None


@lru_cache(maxsize=1 << 12)
def _parse_api(full_api: str, entry_type: str) -> Call | None:
    """Parse ``{family}.{api}``; one call stands for all calls of the API.

    MindSpore primitives are ``Primitive.{attribute of the cell}.{operator}``.
    """
    family, _, api = full_api.partition(".")
    if entry_type not in ("forward", "backward"):
        return None
    if not api or not family.isidentifier():
        return None
    if family == "Primitive":
        api = api.rpartition(".")[2]
    return Call(intern(f"{family}.{api}"), "op", "", intern(entry_type))
