"""Numbers and names for people, in the same form in findings and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

#: Added before rounding down to tenths of a percent: more than the rounding error of a double near
#: 1000 (1e-13), far less than a tenth.
_ROUNDING_ADDEND = 1e-9
_MIN_RUN = 3  #: successive numbers from which on only both ends are written


def format_number(value: float) -> str:
    """Return a number with two significant digits, enough for an error; '-' for NaN.

    >>> format_number(3.14e-2), format_number(0.0)
    ('3.1e-2', '0')
    >>> format_number(float("nan")), format_number(float("inf"))
    ('-', 'inf')
    """
    if math.isnan(value):
        return "-"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def format_percent(share: float) -> str:
    """Return a share (0..1) as percent, rounded down so that only 1 is 100 %; '-' for NaN.

    >>> format_percent(0.98215), format_percent(0.99999)
    ('98.2 %', '99.9 %')
    >>> format_percent(1.0), format_percent(float("nan"))
    ('100 %', '-')
    """
    if math.isnan(share):
        return "-"
    # A share such as 0.57 is stored slightly too small; without the addend it would be 56.9 %.
    tenths = math.floor(share * 1000 + _ROUNDING_ADDEND)
    if share < 1:
        tenths = min(tenths, 999)
    return f"{tenths / 10:g} %"


def format_number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in words, runs of at least three shortened.

    >>> format_number_ranges([0, 1, 2, 3, 6]), format_number_ranges([4, 5])
    ('0 to 3 and 6', '4 and 5')
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words: list[str] = []
    for run in runs:
        if len(run) < _MIN_RUN:
            words += [str(number) for number in run]
        else:
            words.append(f"{run[0]} to {run[-1]}")
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def format_first_numbers(numbers: Sequence[int | str], limit: int) -> str:
    """Return the first numbers as a list.

    >>> format_first_numbers([3, 0, 5], 3), format_first_numbers([3, 0, 5], 2)
    ('[3 0 5]', '[3 0 ...]')
    """
    words = [str(number) for number in numbers[:limit]]
    if len(numbers) > limit:
        words.append("...")
    return f"[{' '.join(words)}]"


def format_names(names: Sequence[str], limit: int) -> str:
    """Return the first names, and how many more there are.

    >>> format_names(["a", "b", "c"], 3), format_names(["a", "b", "c"], 2)
    ('a, b, c', 'a, b and 1 more')
    """
    n_more = len(names) - limit
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{', '.join(names[:limit])}{more}"


def escape_control(text: str) -> str:
    r"""Return text from a dump with its control characters escaped.

    A name must not control the terminal or break the line.

    >>> escape_control("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    if text.isprintable():
        return text
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
