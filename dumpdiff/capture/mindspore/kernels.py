"""The grammar of ``kernels``: which operators an entry selects.

MindSpore removes quotes and spaces from an entry, which then has one of three forms:

``name-regex(R)``
    every operator whose whole name matches the regular expression R (ECMAScript); since 2.3
with ``/`` or ``-op`` in it
    the operator of exactly this name, as in ``Default/network-WithLoss/fc-Dense/MatMul-op0``
anything else
    every operator whose type (the last part of the name, before its last ``-``) contains the entry,
    ignoring case

Names are those of the runtime: the names of the files of a dump, with ``/`` instead of ``_``. On
CPU and GPU the graph files have other numbers after ``-op``, because they were written before the
runtime renumbered the operators.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.errors import DumpError

if TYPE_CHECKING:
    from ...model.trace import Trace

_REGEX = "name-regex("
#: Characters that std::regex treats as special outside brackets.
_SPECIAL = re.compile(r"[.^$|()\[\]{}*+?\\]")
#: ECMAScript has no literal '{': it begins a count, and something stands before it.
_STRAY_BRACE = re.compile(r"(?:^|[(|])\{|\{(?!\d+(?:,\d*)?\})")
_CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "lower": "a-z", "upper": "A-Z"}


@dataclass(frozen=True)
class Kernel:
    """One entry of ``kernels`` as MindSpore interprets it."""

    form: str  #: 'regex', 'name' or 'type'
    text: str  #: the regular expression, the name, or a part of a type

    def selects(self, name: str) -> bool:
        """Return whether the operator of this full name is dumped.

        Raises re.error if the text is not a regular expression.
        """
        if self.form == "regex":
            return re.fullmatch(self._translate_pattern(), name) is not None
        if self.form == "name":
            return name == self.text
        return self.text.lower() in get_operator_type(name).lower()

    def explain_bad_regex(self) -> str:
        """Return why the text is not a valid regular expression; '' if it is."""
        extension = re.search(r"\(\?(?![:=!])..?", self.text)
        if extension:
            return f"{extension[0]!r} does not exist in ECMAScript"
        if _STRAY_BRACE.search(re.sub(r"\[[^]]*\]", "[]", self.text)):
            return "a '{' begins a count such as {2} or {1,3} after a character; write [{]"
        try:
            re.compile(self._translate_pattern())
        except (re.error, RecursionError, OverflowError) as error:
            return str(error)
        return ""

    def _translate_pattern(self) -> str:
        """Return the regular expression in Python's syntax, which has no [:digit:]."""
        return re.sub(r"\[:(\w+):\]", lambda match: _CLASSES.get(match[1], match[0]), self.text)


def parse_kernel(entry: object) -> Kernel:
    """Return the entry as MindSpore interprets it.

    MindSpore uses the JSON text of the entry: it removes quotes and spaces, and a backslash stays
    doubled.
    """
    text = (
        json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        .replace('"', "")
        .replace(" ", "")
    )
    if text.startswith(_REGEX) and text.endswith(")"):
        return Kernel("regex", text[len(_REGEX) : -1])
    return Kernel("name" if "/" in text or "-op" in text else "type", text)


def get_operator_type(name: str) -> str:
    """Return ``MatMul`` for ``Default/fc-Dense/MatMul-op0``, the type of the operator."""
    last = name.rsplit("/", 1)[-1]
    return last.rsplit("-", 1)[0]


def extract_regex(names: Iterable[str]) -> str:
    """Return one ``name-regex(…)`` entry that selects exactly these full names.

    Special characters are put into brackets, as in [.], because MindSpore doubles a backslash.
    Raises ValueError for a name with a character that brackets cannot quote; no operator has one.
    """
    return f"{_REGEX}{'|'.join(_SPECIAL.sub(_quote_in_brackets, name) for name in names)})"


def _quote_in_brackets(match: re.Match[str]) -> str:
    if match[0] in r"^[]\\":
        raise ValueError(
            f"{match.string!r}: {match[0]!r} cannot be quoted in the name of an operator"
        )
    return f"[{match[0]}]"


def list_kernel_names(trace: Trace) -> tuple[str, ...]:
    """Return the full names of the operators and parameters of a dump, as in the runtime.

    Raises DumpError if the dump has no full names: without a graph they have '_' instead of '/'.
    """
    names = trace.ops["name"].str.replace(r"#\d+$", "", regex=True)
    if trace.source.format != "mindspore" or not names.str.contains("/").any():
        raise DumpError(
            f"{trace.source.path}: has no full names of operators; "
            "expected a MindSpore dump with its graphs"
        )
    parameters = trace.tensors["parameter"]
    return tuple(dict.fromkeys([*names, *parameters[parameters != ""]]))
