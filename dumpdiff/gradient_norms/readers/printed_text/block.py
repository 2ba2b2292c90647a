"""Local norms of one step as a log prints them, and the exactness of printed numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....model.arrays import Floats
from ....training_logs.log_text import parse_number

#: A printed number, also nan and inf.
NUMBER = r"[+-]?(?:(?i:nan|inf(?:inity)?)|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"

#: Exponents of the last decimal are limited to this range, which float64 can represent.
_MIN_EXPONENT, _MAX_EXPONENT = -320, 300
#: Longer exponents are damage, not numbers.
_EXPONENT = re.compile(r"(?=.{1,5}$)[+-]?\d+")


@dataclass(frozen=True)
class Block:
    """The norms of one step. ``names`` and ``sizes`` are empty if none are printed."""

    texts: tuple[str, ...]
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    step: int | None = None
    offset: int = 0  #: characters from the beginning of the log
    notes: tuple[str, ...] = ()

    def parse_values(self) -> Floats:
        """Return the numbers; NaN for a text that is no number."""
        return np.array([parse_number(text) for text in self.texts], dtype=float)


def split_by_repetition(pairs: Iterable[tuple[str, str]]) -> Iterator[Block]:
    """Yield a block per step of (name, text) pairs: the n-th text of a name belongs to step n."""
    steps: list[dict[str, str]] = []
    counts: dict[str, int] = {}
    for name, text in pairs:
        step_index = counts.get(name, 0)
        counts[name] = step_index + 1
        if step_index == len(steps):
            steps.append({})
        steps[step_index][name] = text
    for step_index, texts_by_name in enumerate(steps):
        yield Block(tuple(texts_by_name.values()), tuple(texts_by_name), step=step_index + 1)


def estimate_rounding(texts: Sequence[str]) -> Floats:
    """Return half of the last decimal of each number of one print; 0 for a text that is no number.

    Many formats drop trailing zeros, so a number may be more exact than it looks. Numbers without
    an exponent all have either as many decimals as the one with the most (NumPy), or as many
    digits (``%g``); the variant that more of the numbers show is chosen.

    >>> estimate_rounding(["0.7230", "2.4887e-06"]).tolist()
    [5e-05, 5e-11]
    >>> estimate_rounding(["3.74166", "14", "0.123456"]).tolist()
    [5e-06, 5e-05, 5e-07]
    """
    numbers = [_count_digits(text) for text in texts]
    plain_numbers = [number for number in numbers if number is not None and number.exponent is None]
    decimal_counts = Counter(number.decimals for number in plain_numbers)
    digit_counts = Counter(number.digits for number in plain_numbers)
    max_decimals = max(decimal_counts, default=0)
    max_digits = max(digit_counts, default=0)
    by_digits = len(decimal_counts) > 1 and digit_counts[max_digits] > decimal_counts[max_decimals]
    rounding = []
    for number in numbers:
        if number is None:
            rounding.append(0.0)
            continue
        if number.exponent is not None:
            last_decimal = number.exponent - number.decimals
        elif by_digits and number.digits:
            last_decimal = number.leading_digits - max_digits
        else:
            last_decimal = -max_decimals
        last_decimal = max(min(last_decimal, _MAX_EXPONENT), _MIN_EXPONENT)
        rounding.append(0.5 * 10.0**last_decimal)
    return np.array(rounding, dtype=float)


class _Digits(NamedTuple):
    """The digits of a printed number."""

    decimals: int
    digits: int  #: significant ones
    exponent: int | None
    leading_digits: int  #: before the point; negative: zeros after the point


def _count_digits(text: str) -> _Digits | None:
    """Return the digits of a printed number; None if it is no finite number."""
    mantissa, mark, exponent = text.strip().lower().lstrip("+-").partition("e")
    integer, _, fraction = mantissa.partition(".")
    if not (integer + fraction).isdecimal():
        return None
    if mark and _EXPONENT.fullmatch(exponent) is None:
        return None
    leading_zeros = len(fraction) - len(fraction.lstrip("0"))
    return _Digits(
        decimals=len(fraction),
        digits=len((integer + fraction).lstrip("0")),
        exponent=int(exponent) if mark else None,
        leading_digits=len(integer.lstrip("0")) or -leading_zeros,
    )
