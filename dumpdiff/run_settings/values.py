"""Values in the form in which they are compared: '1e-5' and 1.e-5 are one number."""

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


#: Two numbers are equal within this relative difference: a decimal text keeps fewer digits than a
#: float.
_EQUAL_WITHIN = 1e-9


#: No setting counts more; beyond it, floats are no exact numbers.
_MAX_INTEGER = 2**53


def parse_integer(value: Any) -> int:
    """Return a whole number, also of '1536' or 1536.0.

    Raises ValueError or OverflowError for anything else, and for more than a setting can mean.
    """
    number = float(value)
    if not number.is_integer() or abs(number) > _MAX_INTEGER:
        raise ValueError(value)
    return int(number)


def parse_number(value: Any) -> float:
    """Return a finite number. Raises ValueError for anything else."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def parse_boolean(value: Any) -> bool:
    """Return a truth value, also of 'True' or 1. Raises ValueError for anything else."""
    text = str(value).strip().lower()
    if text not in _FALSE | _TRUE:
        raise ValueError(value)
    return text in _TRUE


def parse_dtype(value: Any) -> str:
    """Return the name of a dtype: float32 for torch.float32, fp32, 'float'. Raises ValueError."""
    text = str(value).strip().lower().rpartition(".")[2]
    if text not in _DTYPES:
        raise ValueError(value)
    return _DTYPES[text]


def parse_text(value: Any) -> str:
    """Return text in lower case, without quotes, and without the class of AttnBackend.flash."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    text = " ".join(map(str, parts)).strip().strip("'\"").lower()
    class_name, dot, member = text.rpartition(".")
    if dot and class_name.isidentifier() and member.isidentifier():
        return member
    return text


def parse_path(value: Any) -> str:
    """Return a path as written; only whether one is given can be compared."""
    return str(value)


def parse_sequence(value: Any) -> tuple[Any, ...]:
    """Return the items of a list, or of a text with commas or blanks, as numbers if they are."""
    if isinstance(value, (list, tuple)):
        items = list(value)
    else:
        items = str(value).strip("[]()'\" ").replace(",", " ").split()
    return tuple(_parse_item(item) for item in items)


def _parse_item(item: Any) -> Any:
    try:
        return parse_number(item)
    except (TypeError, ValueError):
        return str(item).strip("'\" ")


#: Parser of each ``type`` of ``rules/settings.yaml``.
PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "integer": parse_integer,
    "number": parse_number,
    "boolean": parse_boolean,
    "dtype": parse_dtype,
    "text": parse_text,
    "path": parse_path,
    "sequence": parse_sequence,
}


def is_nothing(value: Any) -> bool:
    """Return whether the value is None, or a text that means it in a script or a log."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def are_equal(target: Any, reference: Any) -> bool:
    """Return whether two values are equal, numbers within the precision of a decimal text."""
    if isinstance(target, tuple) and isinstance(reference, tuple):
        return len(target) == len(reference) and all(map(are_equal, target, reference))
    if isinstance(target, bool) or isinstance(reference, bool):
        return target is reference
    if isinstance(target, (int, float)) and isinstance(reference, (int, float)):
        return math.isclose(target, reference, rel_tol=_EQUAL_WITHIN)
    return bool(target == reference)


def format_value(value: Any) -> str:
    """Return a value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, tuple):
        return ", ".join(format_value(item) for item in value)
    return str(value)
