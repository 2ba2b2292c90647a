"""Parsers for values that both families write in the same form."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from ..row_value import UnknownValueError
from ..values import parse_number

_Value = TypeVar("_Value")

#: No model has so many layers; a larger number is an error.
_MAX_LAYERS = 10_000


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


def require_finite(value: float, name: str) -> float:
    """Return a computed number. Raises UnknownValueError if it is not finite."""
    if not math.isfinite(value):
        raise UnknownValueError(f"{name} is too large")
    return value


def require_number(value: float, name: str) -> int:
    """Return a computed number as a whole one. Raises UnknownValueError if it is not finite."""
    return int(require_finite(value, name))


def parse_counts(values: Any, name: str) -> list[float]:
    """Return the numbers in a list. Raises UnknownValueError if there are other items."""
    try:
        return [parse_number(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        raise UnknownValueError(f"{name} is {values!r}, expected numbers") from None


def require_layers(value: int | None) -> int:
    """Return a number of layers. Raises UnknownValueError if no model has that many."""
    layers = require(value, "the number of layers")
    if not 0 <= layers <= _MAX_LAYERS:
        raise UnknownValueError(f"the number of layers is {layers}")
    return layers


def normalize_shares(value: Any) -> tuple[float, ...]:
    """Return ``969, 30, 1`` as three shares that sum to 1 (training, validation, test)."""
    parts = value if isinstance(value, (list, tuple)) else str(value).replace(",", " ").split()
    shares = parse_counts([str(part).strip(",") for part in parts], "split")
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
        return "".join(str(int(item)) for item in parse_counts(value, "moe-layer-freq"))
    text = str(value).replace(" ", "")
    period = _parse_count(text)
    if period is not None and period > 0:
        return "".join(str(int(layer % period == 0)) for layer in range(layers))
    pattern = ""
    for term in text.strip("()").split("+"):
        body, _, repeats = term.partition("*")
        digits = body.strip("[]()").replace(",", "")
        n_repeats = _parse_count(repeats or "1")
        if not digits.isdecimal() or n_repeats is None:
            raise UnknownValueError(f"moe-layer-freq is {value!r}, which is not supported")
        pattern += digits * n_repeats
    return pattern


def _parse_count(text: str) -> int | None:
    """Return a number of layers, None if it is none."""
    is_count = text.isdecimal() and len(text) <= len(str(_MAX_LAYERS))
    return int(text) if is_count and int(text) <= _MAX_LAYERS else None
