"""Values as they are compared: a script's '1e-5', YAML's 1.e-5 and a log's 1e-05 are one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_DTYPES = {
    "fp32": "float32", "float": "float32", "float32": "float32",
    "fp16": "float16", "half": "float16", "float16": "float16",
    "bf16": "bfloat16", "bfloat16": "bfloat16",
    "fp64": "float64", "double": "float64", "float64": "float64",
    "fp8": "float8", "uint8": "float8",
}  # fmt: skip
_FALSE, _TRUE = {"false", "0", "no", "off"}, {"true", "1", "yes", "on"}
_NOTHING = {"", "none", "null"}


def integer(value: Any) -> int:
    """A whole number, also as '1536' or 1536.0. Raises ValueError if it is none."""
    number = float(value)
    if not number.is_integer():
        raise ValueError(value)
    return int(number)


def number(value: Any) -> float:
    """A finite number. Raises ValueError if it is none."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(value)
    return found


def boolean(value: Any) -> bool:
    """A truth value, also as 'True' or 1; an option without a value is true. Raises ValueError if it is none."""
    text = str(value).strip().lower()
    if text not in _FALSE | _TRUE:
        raise ValueError(value)
    return text in _TRUE


def dtype(value: Any) -> str:
    """The name of a dtype: float32 for torch.float32, fp32, 'float'; ValueError if it is none."""
    text = str(value).strip().lower().rpartition(".")[2]
    if text not in _DTYPES:
        raise ValueError(value)
    return _DTYPES[text]


def text(value: Any) -> str:
    """Lower case, without the class of an enumeration (AttnBackend.flash) and without quotes."""
    joined = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    plain = joined.strip().strip("'\"").lower()
    head, dot, tail = plain.rpartition(".")
    return tail if dot and head.isidentifier() and tail.isidentifier() else plain


def path(value: Any) -> str:
    """A place on disk, as it stands; only whether one is given can be compared."""
    return str(value)


def sequence(value: Any) -> tuple[Any, ...]:
    """Several values, of a list or a text with commas or blanks; numbers where they are numbers."""
    items = (
        value
        if isinstance(value, (list, tuple))
        else str(value).strip("[]()'\" ").replace(",", " ").split()
    )
    return tuple(_plain(item) for item in items)


def _plain(item: Any) -> Any:
    try:
        return number(item)
    except (TypeError, ValueError):
        return str(item).strip("'\" ")


TYPES: Mapping[str, Callable[[Any], Any]] = {
    "integer": integer,
    "number": number,
    "boolean": boolean,
    "dtype": dtype,
    "text": text,
    "path": path,
    "sequence": sequence,
}


def is_nothing(value: Any) -> bool:
    """None, or how a script or a log says so."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def same(first: Any, second: Any) -> bool:
    """Equal, numbers up to what a decimal text loses."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(
            same(a, b) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return math.isclose(first, second, rel_tol=1e-9)
    return bool(first == second)


def spoken(value: Any) -> str:
    """A value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, tuple):
        return ", ".join(spoken(item) for item in value)
    return str(value)
