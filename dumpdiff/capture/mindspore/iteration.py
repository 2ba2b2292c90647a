"""The grammar of ``iteration``: 'all', or numbers and ranges joined by '|'.

MindSpore tests each part by itself at the end of a step. A part that it cannot read silently
selects no step. It refuses only characters other than digits, '-' and '|' (also spaces, although
its own examples contain some).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ALL = "all"
_MAX_DIGITS = 20  #: of the largest number of 64 bits; MindSpore cannot read longer numbers
_MAX_NUMBER = 2**64 - 1  #: nor larger ones
#: A step count has 32 bits: no step has a larger number, but a range may end with one.
_MAX_STEP = 2**32 - 1


@dataclass(frozen=True)
class Iterations:
    """The steps that an ``iteration`` text selects."""

    selects_all: bool
    #: first and last step of each part that selects any, in the order of the text
    ranges: tuple[tuple[int, int], ...]
    unreachable_parts: tuple[tuple[str, str], ...]  #: parts that select no step, and the reason

    @property
    def last(self) -> int | None:
        """The last selected step; None if all or no steps are selected."""
        return None if self.selects_all or not self.ranges else max(last for _, last in self.ranges)

    def __contains__(self, step: int) -> bool:
        return self.selects_all or any(first <= step <= last for first, last in self.ranges)


def find_bad_characters(text: str) -> str:
    """Return the characters for which MindSpore refuses the text, each once."""
    return "" if text == ALL else "".join(dict.fromkeys(re.sub(r"[0-9|-]", "", text)))


def parse_iterations(text: str) -> Iterations:
    """Return the steps that a text without bad characters selects."""
    if text == ALL:
        return Iterations(True, (), ())
    ranges, unreachable_parts = [], []
    for part in text.split("|"):
        reason = _explain_unreachable(part)
        if reason:
            unreachable_parts.append((part, reason))
        else:
            first, _, last = part.partition("-")
            ranges.append((int(first), int(last or first)))
    return Iterations(False, tuple(ranges), tuple(unreachable_parts))


def _explain_unreachable(part: str) -> str:
    """Return why a part selects no step; '' if it selects any."""
    if not part:
        return "one side of a '|' is empty"
    numbers = part.split("-")
    if len(numbers) > 2:
        return "a range has exactly one '-'"
    if not all(numbers):
        return "a range needs both ends"
    is_too_large = any(len(number) > _MAX_DIGITS or int(number) > _MAX_NUMBER for number in numbers)
    if is_too_large or int(numbers[0]) > _MAX_STEP:
        return "no step has such a large number"
    if int(numbers[0]) > int(numbers[-1]):
        return "the range ends before it begins"
    return ""
