"""Parsers for values that both families write in the same form."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from ..row_value import UnknownValueError

_Value = TypeVar("_Value")

#: Largest repetition in a layer pattern. No model has so many layers; a larger number is an error.
_MAX_REPEATS = 1000


def require(value: _Value | None, name: str) -> _Value:
    """Return the value. Raises UnknownValueError if it is None; ``name`` says what is not set."""
    if value is None:
        raise UnknownValueError(f"{name} is not set")
    return value


def require_nonzero(value: int | None, name: str) -> int:
    """Return a divisor. Raises UnknownValueError if it is None or 0."""
    divisor = require(value, name)
    if divisor == 0:
        raise UnknownValueError(f"{name} is 0")
    return divisor


def normalize_shares(value: Any) -> tuple[float, ...]:
    """Return ``969, 30, 1`` as three shares that sum to 1 (training, validation, test)."""
    parts = value if isinstance(value, (list, tuple)) else str(value).replace(",", " ").split()
    try:
        shares = [float(str(part).strip(",")) for part in parts]
    except ValueError:
        raise UnknownValueError(f"split is {value!r}, expected numbers") from None
    total = math.fsum(shares)
    if not total > 0:
        raise UnknownValueError(f"split is {value!r}, expected shares of the data")
    three_shares = [*shares, 0.0, 0.0][:3]
    return tuple(round(share / total, 9) for share in three_shares)


def expand_layer_pattern(value: Any, layers: int) -> str:
    """Return one digit per layer, 1 for a mixture of experts.

    ``value`` is ``[0]*3+[1]*58``, a list, or n: every n-th layer, starting with the first.
    """
    if isinstance(value, (list, tuple)):
        return "".join(str(int(item)) for item in value)
    text = str(value).replace(" ", "")
    if text.isdigit() and int(text) > 0:
        period = int(text)
        return "".join(str(int(layer % period == 0)) for layer in range(layers))
    pattern = ""
    for term in text.strip("()").split("+"):
        body, _, repeats = term.partition("*")
        digits = body.strip("[]()").replace(",", "")
        if not digits.isdigit() or not _is_repeat_count(repeats):
            raise UnknownValueError(f"moe-layer-freq is {value!r}, which is not supported")
        pattern += digits * int(repeats or 1)
    return pattern


def _is_repeat_count(text: str) -> bool:
    if not text:
        return True
    return text.isdigit() and int(text) <= _MAX_REPEATS
