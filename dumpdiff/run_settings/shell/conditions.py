"""The tests of a shell: ``[ "$A" = b ]``, ``[[ $A == b* && -n $C ]]``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from .words import Word

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_INTEGER = re.compile(r"-?\d+")
_OR, _AND = ("||", "-o"), ("&&", "-a")


def negate(value: bool | None) -> bool | None:
    """Return the opposite of a truth value; None is unknown."""
    return None if value is None else not value


def conjoin(values: Sequence[bool | None]) -> bool | None:
    """Return whether all values are true; None if that depends on an unknown value."""
    if False in values:
        return False
    return None if None in values else True


def disjoin(values: Sequence[bool | None]) -> bool | None:
    """Return whether any value is true; None if that depends on an unknown value."""
    return negate(conjoin([negate(value) for value in values]))


def evaluate(words: Sequence[Word], *, is_double: bool = False) -> bool | None:
    """Evaluate the words of a test without its brackets.

    ``is_double``: it has double brackets, so that a right side is a pattern. The result is None if
    it depends on something that the script does not define, such as whether a file exists.
    """
    for operators, combine in ((_OR, disjoin), (_AND, conjoin)):
        index = _find_operator(words, operators)
        if index:
            sides = (words[:index], words[index + 1 :])
            return combine([evaluate(side, is_double=is_double) for side in sides])
    texts = [word.text for word in words]
    if texts[:1] == ["("] and texts[-1] == ")":
        return evaluate(words[1:-1], is_double=is_double)
    if texts[:1] == ["!"]:
        return negate(evaluate(words[1:], is_double=is_double))
    return _evaluate_primary(words, is_pattern=is_double)


def _evaluate_primary(words: Sequence[Word], *, is_pattern: bool) -> bool | None:
    """Evaluate a test without operators that join others."""
    texts = [word.text for word in words]
    if len(words) == 2 and texts[0] in ("-z", "-n"):
        is_known = words[1].is_known or words[1].is_unset
        is_empty = words[1].is_unset or texts[1] == ""
        return (is_empty == (texts[0] == "-z")) if is_known else None
    if not all(word.is_known for word in words):
        return None
    if len(texts) == 3:
        return _compare(*texts, is_pattern=is_pattern)
    # An unquoted variable without a text is no word: [ $A ] is [ ], and [ -z $A ] is [ -z ].
    return any(texts) if len(texts) < 2 else None


def _find_operator(words: Sequence[Word], operators: tuple[str, str]) -> int:
    """Return the position of an operator outside of brackets, 0 if there is none."""
    depth = 0
    for index, word in enumerate(words):
        depth += (word.text == "(") - (word.text == ")")
        if word.text in operators and depth == 0 and 0 < index < len(words) - 1:
            return index
    return 0


def _compare(left_text: str, sign: str, right_text: str, *, is_pattern: bool) -> bool | None:
    if sign in ("=", "==", "!="):
        is_equal = left_text == right_text
        if is_pattern:
            is_equal = fnmatchcase(left_text, right_text)
        return is_equal == (sign != "!=")
    if sign not in _COMPARISONS:
        return None
    if not (_INTEGER.fullmatch(left_text) and _INTEGER.fullmatch(right_text)):
        return None
    return _COMPARISONS[sign](int(left_text), int(right_text))
