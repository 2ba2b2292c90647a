"""Parse the names of entries in msprobe's dump.json and debug.json (1.0 to 26.2).

Examples: ``Functional.linear.0.forward``, ``Module.layers.0.mlp.MLP.backward.0``, and of a value
that was saved by hand ``hidden.0.debug``.
"""

from __future__ import annotations

from sys import intern
from typing import NamedTuple

_MODULE_PREFIXES = ("Module.", "Cell.")


#: Ending of the name of a gradient that was saved by hand.
SAVED_GRADIENT = "_grad"


class Call(NamedTuple):
    """The parts of an entry's name. Kinds and types are one string for all entries of them."""

    kind: str  #: Functional.linear, Primitive.MatMul, Module.Linear, parameters_grad
    level: str  #: op or module
    scope: str  #: path of a module, '' for other entries
    entry_type: str  #: forward, backward or parameters_grad
    forward: str  #: name of the forward entry that a gradient belongs to


def parse_name(name: str) -> Call | None:
    """Return the parts of an entry's name, None if it has no known form.

    >>> call = parse_name("Primitive.matmul.MatMul.0.backward")
    >>> call.kind, call.entry_type, call.forward
    ('Primitive.MatMul', 'backward', 'Primitive.matmul.MatMul.0.forward')
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
        return Call("", "op", "", "backward", "")
    return Call("", "op", "", "forward", "")


def _parse_module_name(name: str) -> Call | None:
    """Parse ``Module.{scope}.{class}.{entry_type}.{n}``.

    The number is omitted for a single call.
    """
    front, _, entry_type = name.rpartition(".")
    number = "0"
    if entry_type.isdecimal():
        number = entry_type
        front, _, entry_type = front.rpartition(".")
    if entry_type not in ("forward", "backward", "parameters_grad"):
        return None
    module, _, class_name = front.rpartition(".")
    if not module or not class_name:
        return None
    family, _, scope = module.partition(".")
    forward = f"{front}.forward.{number}"
    if entry_type == "parameters_grad":
        return Call("parameters_grad", "op", scope, "parameters_grad", forward)
    return Call(intern(f"{family}.{class_name}"), "module", scope, intern(entry_type), forward)


def _parse_api_name(name: str) -> Call | None:
    """Parse ``{family}.{api}.{n}.{entry_type}``.

    MindSpore primitives are ``Primitive.{attribute of the cell}.{operator}.{n}.{entry_type}``.
    """
    front, _, entry_type = name.rpartition(".")
    full_api, _, number = front.rpartition(".")
    family, _, api = full_api.partition(".")
    if entry_type not in ("forward", "backward") or not number.isdecimal():
        return None
    if not api or not family.isidentifier():
        return None
    if family == "Primitive":
        api = api.rpartition(".")[2]
    forward = name if entry_type == "forward" else f"{front}.forward"
    return Call(intern(f"{family}.{api}"), "op", "", intern(entry_type), forward)
