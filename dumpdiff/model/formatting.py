"""Numbers as a person reads them, the same in findings and reports."""

from __future__ import annotations

import math


def format_number(value: float) -> str:
    """Two significant digits, which is all that an error has to say; '-' where nothing was measured.

    >>> number(3.14e-2), number(0.0), number(float("nan")), number(float("inf"))
    ('3.1e-2', '0', '-', 'inf')
    """
    if math.isnan(value):
        return "-"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def format_percent(share: float) -> str:
    """A share in 0..1 as percent, rounded down: only everything is 100 %.

    >>> percent(0.98215), percent(0.99999), percent(1.0), percent(float("nan"))
    ('98.2 %', '99.9 %', '100 %', '-')
    """
    if math.isnan(share):
        return "-"
    # A share such as 0.7 is stored a little below itself: without the nudge, 0.57 would be said as 56.9 %.
    tenths = math.floor(share * 1000 + 1e-9)
    if share < 1:
        tenths = min(tenths, 999)
    return f"{tenths / 10:g} %"


def escape_control(text: str) -> str:
    r"""Text from a dump without control characters: a name must not drive the terminal or break the line.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
