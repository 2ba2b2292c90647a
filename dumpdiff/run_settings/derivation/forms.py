"""Forms that both families write a value in."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from ..row_value import Silent

_T = TypeVar("_T")


def needed(value: _T | None, what: str) -> _T:
    """The value, or Silent if there is none."""
    if value is None:
        raise Silent(f"{what} is not set")
    return value


def shares(value: Any) -> tuple[float, ...]:
    """``969, 30, 1`` as shares that sum to 1."""
    parts = value if isinstance(value, (list, tuple)) else str(value).replace(",", " ").split()
    try:
        found = [float(str(part).strip(",")) for part in parts]
    except ValueError:
        raise Silent(f"split is {value!r}, expected numbers") from None
    if not (total := math.fsum(found)) > 0:
        raise Silent(f"split is {value!r}, expected shares of the data")
    return tuple(round(share / total, 9) for share in [*found, 0.0, 0.0][:3])


def layer_pattern(value: Any, layers: int) -> str:
    """``[0]*3+[1]*58``, a list, or n: every n-th layer from the first."""
    if isinstance(value, (list, tuple)):
        return "".join(str(int(item)) for item in value)
    text = str(value).replace(" ", "")
    if text.isdigit() and int(text) > 0:
        return "".join("1" if i % int(text) == 0 else "0" for i in range(layers))
    found = ""
    for term in text.strip("()").split("+"):
        body, _, times = term.partition("*")
        digits = body.strip("[]()").replace(",", "")
        if not digits.isdigit() or (times and not times.isdigit()) or int(times or 1) > 1000:
            raise Silent(f"moe-layer-freq is {value!r}, which is not read")
        found += digits * int(times or 1)
    return found
