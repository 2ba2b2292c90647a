"""Local norms as a log prints them at one place: texts, and what stands beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....model.arrays import Floats
from ....training_logs.numbers import number

#: A printed number, also nan and inf.
NUMBER = r"[+-]?(?:(?i:nan|inf(?:inity)?)|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"


@dataclass(frozen=True)
class Block:
    """The norms of one step. ``names`` and ``sizes`` are empty where none are printed."""

    texts: tuple[str, ...]
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    step: int | None = None
    place: int = 0  #: characters from the beginning of the log
    notes: tuple[str, ...] = ()

    def values(self) -> Floats:
        """The numbers; NaN for what is none."""
        return np.array([number(text) for text in self.texts], dtype=float)


def by_turns(pairs: Iterator[tuple[str, str]]) -> Iterator[Block]:
    """Names and texts as steps: the n-th text of each name is of step n."""
    turns: list[dict[str, str]] = []
    seen: dict[str, int] = {}
    for name, text in pairs:
        turn = seen.get(name, 0)
        seen[name] = turn + 1
        if turn == len(turns):
            turns.append({})
        turns[turn][name] = text
    for turn, named in enumerate(turns):
        yield Block(tuple(named.values()), tuple(named), step=turn + 1)


def rounding_of(texts: Sequence[str]) -> Floats:
    """Half of the last decimal of each number of one print.

    Trailing zeros are dropped by many formats, so a number may be more exact than it looks: of numbers without an
    exponent either all have as many decimals as the one with most (NumPy), or all as many digits (``%g``), whichever
    more of them show.

    >>> rounding_of(["0.7230", "2.4887e-06"]).tolist(), rounding_of(["3.74166", "14", "0.123456"]).tolist()
    ([5e-05, 5e-11], [5e-06, 5e-05, 5e-07])
    """
    parts = [_parts(text) for text in texts]
    plain = [part for part in parts if part is not None and part[2] is None]
    decimals = Counter(shown for shown, _, _, _ in plain)
    digits = Counter(told for _, told, _, _ in plain)
    most, longest = max(decimals, default=0), max(digits, default=0)
    by_digits = len(decimals) > 1 and digits[longest] > decimals[most]
    found = []
    for part in parts:
        if part is None:
            found.append(0.0)
            continue
        shown, told, exponent, before = part
        if exponent is not None:
            last = exponent - shown
        elif by_digits and told:
            last = before - longest
        else:
            last = -most
        found.append(0.5 * 10.0 ** max(min(last, 300), -320))
    return np.array(found, dtype=float)


def _parts(text: str) -> tuple[int, int, int | None, int] | None:
    """Decimals, significant digits, the exponent, and digits before the point; None if it is no finite number."""
    mantissa, mark, exponent = text.strip().lower().lstrip("+-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    if not (whole + fraction).isdigit() or len(exponent) > 5:
        return None
    leading = len(whole.lstrip("0")) or -(len(fraction) - len(fraction.lstrip("0")))
    return (
        len(fraction),
        len((whole + fraction).lstrip("0")),
        int(exponent) if mark else None,
        leading,
    )
