"""Text and numbers as logs print them: 8.35E+00, nan, [0.27662084], None."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice

#: A printed number, for patterns.
NUMBER = r"[+-]?(?:nan|inf|NaN|Inf|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"

_RESOLUTION_SAMPLE = 500  #: values that are read to find how many digits a log prints
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def strip_terminal_codes(text: str) -> str:
    """Remove terminal escape sequences, and replace carriage returns by newlines."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return text.replace("\r", "\n") if "\r" in text else text


def find_matching_lines(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each match of ``anchor`` with the rest of its line.

    The rest also ends where the next match begins: two processes may write two records into one
    line.
    """
    match = pattern.search(text)
    while match is not None:
        next_match = pattern.search(text, match.end())
        end = text.find("\n", match.end())
        if end < 0:
            end = len(text)
        if next_match is not None:
            end = min(end, next_match.start())
        yield match, text[match.end() : end]
        match = next_match


def parse_number(text: str) -> float:
    """Return the value of a printed number; NaN for None and for anything that is not a number.

    >>> parse_number("[0.27662084]"), parse_number(" 8.351725E+00 "), parse_number("'4.699'")
    (0.27662084, 8.351725, 4.699)
    >>> parse_number("None")
    nan
    """
    try:
        return float(text.strip("[]'\" \t"))
    except ValueError:
        return math.nan


def is_nonfinite(text: str) -> bool:
    """Whether a printed value is NaN or infinite; False if it is missing."""
    return text.strip("[]'\" \t+-").lower() in ("nan", "inf", "infinity")


def estimate_resolution(texts: Iterable[str]) -> float:
    """Return half of the last printed decimal of the most exact value; 0 if no value is a number.

    The most exact value counts because trailing zeros are often not printed.

    >>> estimate_resolution(["4.1", "4.143"]), estimate_resolution(["8.351725E+00"])
    (0.0005, 5e-07)
    >>> estimate_resolution([])
    0.0
    """
    resolutions: list[float] = []
    for text in set(islice(texts, _RESOLUTION_SAMPLE)):
        mantissa, _, exponent = text.strip("[]'\" \t").lower().partition("e")
        is_decimal = mantissa.lstrip("+-").replace(".", "", 1).isdecimal()
        if not is_decimal or not mantissa.strip("0."):
            continue
        n_decimals = len(mantissa.partition(".")[2])
        try:
            resolutions.append(0.5 * 10.0 ** (int(exponent or 0) - n_decimals))
        except (ValueError, OverflowError):
            continue
    return min(resolutions, default=0.0)
