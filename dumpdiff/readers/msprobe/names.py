"""The names of msprobe's entries: ``Functional.linear.0.forward``, ``Module.layers.0.mlp.MLP.backward.0``."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_MODULE_PREFIXES = ("Module.", "Cell.")


class Call(NamedTuple):
    """What an entry's name says."""

    kind: str  #: Functional.linear, Primitive.MatMul, Module.Linear, parameters_grad
    level: str  #: op or module
    scope: str  #: of modules
    what: str  #: forward, backward or parameters_grad
    forward: str  #: name of the forward entry that a gradient belongs to


@lru_cache(maxsize=1 << 17)
def parse_name(name: str) -> Call | None:
    """The parts of an entry's name, None if it has no such form.

    >>> parse_name("Primitive.matmul.MatMul.0.backward")
    Call(kind='Primitive.MatMul', level='op', scope='', what='backward', forward='Primitive.matmul.MatMul.0.forward')
    """
    return (name.startswith(_MODULE_PREFIXES) and _module(name)) or _api(name)


def _module(name: str) -> Call | None:
    """``Module.{scope}.{class}.{what}.{n}``; what has no number after it where there was but one."""
    front, _, what = name.rpartition(".")
    number = "0"
    if what.isdecimal():
        number = what
        front, _, what = front.rpartition(".")
    above, _, cls = front.rpartition(".")
    if what not in ("forward", "backward", "parameters_grad") or not above or not cls:
        return None
    family, _, scope = above.partition(".")
    forward = f"{front}.forward.{number}"
    if what == "parameters_grad":
        return Call(what, "op", scope, what, forward)
    return Call(f"{family}.{cls}", "module", scope, what, forward)


def _api(name: str) -> Call | None:
    """``{family}.{api}.{n}.{what}``, and ``Primitive.{attribute of the cell}.{operator}.{n}.{what}``."""
    front, _, what = name.rpartition(".")
    called, _, number = front.rpartition(".")
    family, _, api = called.partition(".")
    if (
        what not in ("forward", "backward")
        or not number.isdecimal()
        or not api
        or not family.isidentifier()
    ):
        return None
    if family == "Primitive":
        api = api.rpartition(".")[2]
    return Call(f"{family}.{api}", "op", "", what, f"{front}.forward")
