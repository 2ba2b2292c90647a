"""The kinds of all ops of a side as numbers: what follows from a kind is computed once for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..rulebook import GRADIENT


@dataclass(frozen=True)
class OpKinds:
    """The kind of each op: ``words[codes[op]]``."""

    words: tuple[str, ...]  #: the different kinds
    codes: Ints  #: (ops,)

    @staticmethod
    def from_names(kinds: Sequence[str]) -> OpKinds:
        """Return the kinds of ops that are given as words."""
        codes, words = pd.factorize(np.array(kinds, dtype=object))
        return OpKinds(tuple(words.tolist()), codes)

    def flag(self, test: Callable[[str], bool]) -> Flags:
        """Return (ops,) a test of the kind of each op."""
        flags: Flags = np.array([test(word) for word in self.words], dtype=bool)[self.codes]
        return flags

    def flag_operators(self, kinds: Collection[str]) -> Flags:
        """Return (ops,) whether the kind of an op, of a gradient that of its operator, is given."""
        return self.flag(lambda kind: kind.removeprefix(GRADIENT) in kinds)

    def measure(self, compute: Callable[[str], float]) -> Floats:
        """Return (ops,) a number that follows from the kind of each op."""
        numbers: Floats = np.array([compute(word) for word in self.words], dtype=float)[self.codes]
        return numbers

    def name_gradients(self, is_gradient: Flags) -> OpKinds:
        """Return the kinds with those of some ops, (ops,) ``is_gradient``, marked as gradients."""
        gradient_words = tuple(
            word if word.startswith(GRADIENT) else f"{GRADIENT}{word}" for word in self.words
        )
        words = (*self.words, *gradient_words)
        return OpKinds(words, self.codes + is_gradient * len(self.words))
