"""The grammar of ``kernels``: which operators an entry selects.

MindSpore removes quotes and spaces from an entry and then takes it as one of three forms:

``name-regex(R)``
    every operator whose whole name matches the regular expression R (ECMAScript); since 2.3
with ``/`` or ``-op`` in it
    the operator of exactly this name, as in ``Default/network-WithLoss/fc-Dense/MatMul-op0``
anything else
    every operator whose type (the name's last part, before its last ``-``) contains the entry, whatever the case

Names are those of the runtime, as in the files of a dump before ``/`` became ``_``; on CPU and GPU the graph files
were written before the numbers behind ``-op`` were given out anew, so theirs are others.
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
#: What std::regex takes as special outside brackets.
_SPECIAL = re.compile(r"[.^$|()\[\]{}*+?\\]")
_CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "lower": "a-z", "upper": "A-Z"}


@dataclass(frozen=True)
class Kernel:
    """One entry of ``kernels`` as MindSpore takes it."""

    form: str  #: 'regex', 'name' or 'type'
    text: str  #: the regular expression, the name or the part of a type

    def selects(self, name: str) -> bool:
        """Whether the operator of this full name is dumped. Raises re.error if the text is no regular expression."""
        if self.form == "regex":
            return re.fullmatch(self._translate_pattern(), name) is not None
        if self.form == "name":
            return name == self.text
        return self.text.lower() in get_operator_type(name).lower()

    def explain_bad_regex(self) -> str:
        """Why the text is no regular expression; '' if it is one."""
        extension = re.search(r"\(\?(?![:=!])..?", self.text)
        if extension:
            return f"{extension[0]!r} is not known in ECMAScript"
        try:
            re.compile(self._translate_pattern())
        except (re.error, RecursionError, OverflowError) as error:
            return str(error)
        return ""

    def _translate_pattern(self) -> str:
        """The regular expression in Python's words, which know no [:digit:]."""
        return re.sub(r"\[:(\w+):\]", lambda found: _CLASSES.get(found[1], found[0]), self.text)


def parse_kernel(entry: object) -> Kernel:
    """The entry as MindSpore takes it.

    It works on the JSON text of the entry: quotes and spaces are dropped, and a backslash stays doubled.
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
    """``Default/fc-Dense/MatMul-op0`` -> ``MatMul``, as the comparison with a type takes it."""
    last = name.rsplit("/", 1)[-1]
    return last.rsplit("-", 1)[0]


def extract_regex(names: Iterable[str]) -> str:
    """One ``name-regex(…)`` entry that selects exactly these full names.

    Special characters are written as in [.], since a backslash would reach the framework doubled. Raises ValueError
    for a name with a character that cannot be written so; no operator's name has one.
    """
    return f"{_REGEX}{'|'.join(_SPECIAL.sub(_quote_in_brackets, name) for name in names)})"


def _quote_in_brackets(match: re.Match[str]) -> str:
    if match[0] in r"^[]\\":
        raise ValueError(f"an operator's name with {match[0]!r}: {match.string!r}")
    return f"[{match[0]}]"


def list_kernel_names(trace: Trace) -> tuple[str, ...]:
    """Full names of the operators and parameters of a dump, as the runtime has them.

    Raises DumpError if the dump does not tell them: without a graph they are known only with '_' for '/'.
    """
    names = trace.ops["name"].str.replace(r"#\d+$", "", regex=True)
    if trace.source.format != "mindspore" or not names.str.contains("/").any():
        raise DumpError(
            f"{trace.source.path}: names no operators in full; expected a MindSpore dump with its graphs"
        )
    parameters = trace.tensors["parameter"]
    return tuple(dict.fromkeys([*names, *parameters[parameters != ""]]))
