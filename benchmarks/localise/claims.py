"""What a right sentence about a fault says: claims, each judged against one sentence.

Dumps do not show which program is right, so a sentence may take either side as its subject. With a
fault in the reference, "behaves as epsilon = 1e-05; the reference uses 0.001" is as right as "of
the reference behaves as epsilon = 0.001; the target uses 1e-05". The numbers are exchanged then, a
factor is inverted, and a shift negated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

TARGET, REFERENCE = "target", "reference"

_SENTENCE = re.compile(
    r"^(?P<place>.*?)(?P<reference> of the reference)? behaves as (?P<description>.*?)"
    r"(?:; the (?:target|reference) (?P<contrast>.*?))?"
    r"(?:; recorded: the target (?P<target>.*), the reference (?P<other>.*): "
    r"(?P<target_factor>\S+) against (?P<other_factor>[^\s;]+))?"
    r"; residual \S+$"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")
#: Largest error of a number that was estimated from float32 tensors, as share of the number ...
_MAX_ERROR = 0.02
#: ... and as share of the difference that the fault makes: 1.01 is not confirmed by 1.
_MAX_ERROR_OF_CHANGE = 0.1


@dataclass(frozen=True)
class Sentence:
    """A sentence, divided into what it says about each side."""

    subject: str  #: target or reference
    description: str
    contrast: str
    recorded: Mapping[str, str]  #: side -> what its dump holds

    def get_text(self, side: str) -> str:
        """Return all that the sentence says about a side."""
        own_text = self.description if side == self.subject else self.contrast
        return f"{own_text} | {self.recorded.get(side, '')}"


def parse_sentence(text: str) -> Sentence:
    """Divide a sentence; one of another form is a description of the target as a whole."""
    match = _SENTENCE.match(text)
    if match is None:
        return Sentence(TARGET, text, "", {})
    recorded = {}
    if match["target"]:
        recorded[TARGET] = f"{match['target']} {match['target_factor']}"
        recorded[REFERENCE] = f"{match['other']} {match['other_factor']}"
    subject = REFERENCE if match["reference"] else TARGET
    return Sentence(subject, match["description"], match["contrast"] or "", recorded)


def read_numbers(text: str) -> list[float]:
    """Return the numbers of a text, without those that are part of a name."""
    return [float(number) for number in _NUMBER.findall(text)]


class Claim:
    """One thing that a right sentence says."""

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        """Return what is missing or wrong, '' if nothing is."""
        raise NotImplementedError


@dataclass(frozen=True)
class Values(Claim):
    """The injected number of the faulty side, and the clean one of the other side."""

    injected: float
    clean: float

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        clean_side = REFERENCE if faulty_side == TARGET else TARGET
        change = _MAX_ERROR_OF_CHANGE * abs(self.injected - self.clean)
        for side, value in ((faulty_side, self.injected), (clean_side, self.clean)):
            max_error = min(_MAX_ERROR * abs(value) or change, change)
            numbers = read_numbers(sentence.get_text(side))
            if not any(abs(number - value) <= max_error for number in numbers):
                return f"{value:.6g} of the {side} is missing"
        return ""


@dataclass(frozen=True)
class Ratio(Claim):
    """The factor of the faulty side, or two numbers whose quotient it is."""

    factor: float

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        expected = self.factor if sentence.subject == faulty_side else 1 / self.factor
        max_error = min(_MAX_ERROR * abs(expected), _MAX_ERROR_OF_CHANGE * abs(expected - 1))
        candidates = read_numbers(sentence.description)
        contrast_numbers = [number for number in read_numbers(sentence.contrast) if number]
        candidates += [n / other for n in candidates[:1] for other in contrast_numbers[:1]]
        if any(abs(candidate - expected) <= max_error for candidate in candidates):
            return ""
        return f"the factor {expected:.6g} is missing"


@dataclass(frozen=True)
class Shift(Claim):
    """A number whose sign depends on the subject."""

    steps: int

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        expected = self.steps if sentence.subject == faulty_side else -self.steps
        if re.search(rf"shifted by {expected}\b", sentence.description):
            return ""
        return f"the shift by {expected} is missing"


@dataclass(frozen=True)
class Order(Claim):
    """The order of the faulty side's parts: in blocks of so many rows, or part by part."""

    parts: tuple[int, ...]
    n_rows: int  #: rows of a part

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        order = np.array(self.parts)
        if sentence.subject != faulty_side:
            order = np.argsort(order)
        blocks = "rows in another order$"
        if self.n_rows > 1:
            blocks = f"rows in another order, in blocks of {self.n_rows}$"
        pattern = rf"{blocks}|in the order {re.escape(str(order.tolist()))}"
        if re.search(pattern, sentence.description):
            return ""
        return f"the order {order.tolist()} of {self.n_rows} rows each is missing"


@dataclass(frozen=True)
class Words(Claim):
    """Patterns of what is said about the faulty side, and about the other one ('' for nothing)."""

    injected: str
    clean: str = ""

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        clean_side = REFERENCE if faulty_side == TARGET else TARGET
        is_subject_faulty = sentence.subject == faulty_side
        patterns = {faulty_side: self.injected, clean_side: self.clean}
        if is_subject_faulty and not sentence.contrast:
            patterns.pop(clean_side)
        for side, pattern in patterns.items():
            if not re.search(pattern, sentence.get_text(side)):
                return f"{pattern!r} of the {side} is missing"
        return ""


@dataclass(frozen=True)
class Anywhere(Claim):
    """A pattern that does not depend on the subject."""

    pattern: str

    def find_error(self, sentence: Sentence, faulty_side: str) -> str:
        if re.search(self.pattern, f"{sentence.description} | {sentence.contrast}"):
            return ""
        return f"{self.pattern!r} is missing"
