"""Numbers as logs print them: 8.35E+00, nan, [0.27662084], None."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice

_SAMPLE = 500  #: values that tell how many digits a log prints
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    """A log without what drives a terminal; a carriage return begins a new line, as on the terminal."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return text.replace("\r", "\n") if "\r" in text else text


def anchored(anchor: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each match of ``anchor`` with the rest of its line; two processes may have glued two records into one line."""
    match = anchor.search(text)
    while match is not None:
        after = anchor.search(text, match.end())
        end = text.find("\n", match.end())
        stops = [stop for stop in (end, after.start() if after is not None else -1) if stop >= 0]
        yield match, text[match.end() : min(stops, default=len(text))]
        match = after


def number(text: str) -> float:
    """The value, NaN for None and for anything that is no number.

    >>> number("[0.27662084]"), number(" 8.351725E+00 "), number("'4.699'"), number("None")
    (0.27662084, 8.351725, 4.699, nan)
    """
    try:
        return float(text.strip("[]'\" \t"))
    except ValueError:
        return math.nan


def is_nonfinite(text: str) -> bool:
    """Whether a printed value is NaN or infinite, unlike one that is not there."""
    return text.strip("[]'\" \t+-").lower() in ("nan", "inf", "infinity")


def resolution(texts: Iterable[str]) -> float:
    """Half of the last printed decimal, of the most exact value (trailing zeros are often left out); 0 if none is.

    >>> resolution(["4.1", "4.143"]), resolution(["8.351725E+00"]), resolution([])
    (0.0005, 5e-07, 0.0)
    """
    found: list[float] = []
    for text in set(islice(texts, _SAMPLE)):
        mantissa, _, exponent = text.strip("[]'\" \t").lower().partition("e")
        if mantissa.lstrip("+-").replace(".", "", 1).isdigit() and mantissa.strip("0."):
            try:
                found.append(0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))
            except (ValueError, OverflowError):
                continue
    return min(found, default=0.0)
