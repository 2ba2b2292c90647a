"""The names of msprobe's entries: ``Functional.linear.0.forward``, ``Module.layers.0.mlp.MLP.backward.0``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_MODULE = re.compile(
    r"(?P<type>Module|Cell)\.(?:(?P<scope>.+)\.)?(?P<cls>[^.]+)"
    r"\.(?P<what>forward|backward|parameters_grad)(?:\.(?P<n>\d+))?"
)
_API = re.compile(r"(?P<family>[A-Za-z]\w*)\.(?P<api>.+)\.(?P<n>\d+)\.(?P<what>forward|backward)")
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
    if name.startswith(_MODULE_PREFIXES) and (match := _MODULE.fullmatch(name)):
        kind, scope, cls, what, number = match.groups()
        forward = f"{name[: match.start('what')]}forward.{number or 0}"
        if what == "parameters_grad":
            return Call(what, "op", scope or "", what, forward)
        return Call(f"{kind}.{cls}", "module", scope or "", what, forward)
    if match := _API.fullmatch(name):
        family, api, _, what = match.groups()
        if family == "Primitive":  # Primitive.matmul.MatMul: the cell's attribute, then the operator
            api = api.rpartition(".")[2]
        return Call(f"{family}.{api}", "op", "", what, f"{name[: match.start('what')]}forward")
    return None
