"""The grammar of ``iteration``: 'all', or numbers and ranges joined by '|'.

MindSpore tests each part by itself when a step ends: a part that it cannot read selects no step, silently. What it
refuses is only a character other than digits, '-' and '|' (spaces too, although its own examples have some).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ALL = "all"
#: Numbers beyond 64 bits select no step; a step count has 32 bits.
_MAX_STEP = 2**32 - 1


@dataclass(frozen=True)
class Iterations:
    """What an ``iteration`` text selects."""

    selects_all: bool
    ranges: tuple[
        tuple[int, int], ...
    ]  #: first and last step of each part that selects any, in the text's order
    unreachable_parts: tuple[tuple[str, str], ...]  #: parts that select no step, and why

    @property
    def last(self) -> int | None:
        """The last step selected; None if there is no last, or none at all."""
        return None if self.selects_all or not self.ranges else max(last for _, last in self.ranges)

    def __contains__(self, step: int) -> bool:
        return self.selects_all or any(first <= step <= last for first, last in self.ranges)


def find_bad_characters(text: str) -> str:
    """The characters for which MindSpore refuses the text, each once."""
    return "" if text == ALL else "".join(dict.fromkeys(re.sub(r"[0-9|-]", "", text)))


def parse_iterations(text: str) -> Iterations:
    """What a text without bad characters selects."""
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
    """Why no step is within this part; '' if one is."""
    if not part:
        return "there is nothing on one side of a '|'"
    numbers = part.split("-")
    if len(numbers) > 2:
        return "a range has one '-'"
    if not all(numbers):
        return "a range needs both its ends"
    if any(len(number) > 20 or int(number) > _MAX_STEP for number in numbers):
        return "no step has so large a number"
    if int(numbers[0]) > int(numbers[-1]):
        return "the range ends before it begins"
    return ""
