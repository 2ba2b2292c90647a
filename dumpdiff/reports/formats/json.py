"""JSON documents: UTF-8, indented, and strictly RFC 8259."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from ...model.trace import Problem


def write_document(document: Mapping[str, Any], stream: IO[bytes]) -> None:
    """Write a document of plain values; the same document gives the same bytes.

    Numbers are written as :func:`to_plain` describes.
    """
    text = json.dumps(to_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    # A path that is not valid UTF-8 holds lone surrogates. Their backslash form is also their JSON
    # escape.
    stream.write(text.encode("utf-8", errors="backslashreplace") + b"\n")


def convert_problem(problem: Problem) -> dict[str, Any]:
    """Return what could not be read, in the form of all documents."""
    return {
        "file": problem.file,
        "message": problem.message,
        "line": problem.line,
        "count": problem.count,
    }


def to_plain(value: Any) -> Any:
    """Convert a value, deeply, to dicts, lists, strings, ints, floats, bools and None.

    RFC 8259 has no NaN and no infinity. NaN means "not measured" here and becomes null; an infinite
    error becomes the string "Infinity" or "-Infinity". Raises TypeError for a value without a JSON
    form.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        return "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")
