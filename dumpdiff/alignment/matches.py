"""The growing match between two sides: which value class is which, which op is which, and why.

The one mutable object of the package; the stages of the alignment add to it and never take away.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints
from .values import Fingerprints, distance


@dataclass
class Matching:
    """Partial one-to-one map between the classes, and between the ops, of two sides."""

    target: Flow
    reference: Flow
    kinds_t: list[str]  #: canonical operator kind of each op
    kinds_r: list[str]
    tolerance: float  #: distance of statistics within which values agree
    classes_t: Ints = field(init=False)  #: target class -> reference class or -1
    classes_r: Ints = field(init=False)
    ops_t: Ints = field(init=False)  #: target op -> reference op or -1
    ops_r: Ints = field(init=False)
    why: dict[int, str] = field(
        default_factory=dict
    )  #: target class -> value, parameter, name, structure, role
    confidence: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes_t = np.full(len(self.target.classes), -1)
        self.classes_r = np.full(len(self.reference.classes), -1)
        self.ops_t = np.full(len(self.target.trace.ops), -1)
        self.ops_r = np.full(len(self.reference.trace.ops), -1)
        self.prints_t = Fingerprints.of(self.target.classes)
        self.prints_r = Fingerprints.of(self.reference.classes)
        self.producer_t = self.target.classes["producer"].to_numpy()
        self.producer_r = self.reference.classes["producer"].to_numpy()
        self._phase_t = self.target.classes["phase"].to_numpy()
        self._phase_r = self.reference.classes["phase"].to_numpy()

    def distance(self, t: int, r: int) -> float:
        """Distance of the statistics of two classes; Inf if nothing can be compared."""
        return float(distance(self.prints_t, np.array([t]), self.prints_r, np.array([r]))[0])

    def may_pair(self, t: int, r: int) -> bool:
        """Free on both sides, of equal size, and not forward on one side and backward on the other."""
        if (
            self.classes_t[t] >= 0
            or self.classes_r[r] >= 0
            or self.prints_t.size[t] != self.prints_r.size[r]
        ):
            return False
        leaf = self.producer_t[t] < 0 or self.producer_r[r] < 0
        return bool(leaf or self._phase_t[t] == self._phase_r[r])

    def pair(self, t: int, r: int, why: str, confidence: float) -> bool:
        """Pair two classes, but not the ops that made them. False if not possible, see :meth:`may_pair`."""
        if not self.may_pair(t, r):
            return False
        self.classes_t[t], self.classes_r[r] = r, t
        self.why[t], self.confidence[t] = why, confidence
        return True

    def pair_ops(self, t: int, r: int) -> bool:
        """Pair two ops; false if one has another partner."""
        if self.ops_t[t] >= 0 or self.ops_r[r] >= 0:
            return bool(self.ops_t[t] == r)
        self.ops_t[t], self.ops_r[r] = r, t
        return True

    def learned(self) -> Counter[tuple[str, str]]:
        """How often an op kind of the target made the same value as an op kind of the reference, where values agree."""
        counts: Counter[tuple[str, str]] = Counter()
        for t, why in self.why.items():
            producer_t, producer_r = self.producer_t[t], self.producer_r[self.classes_t[t]]
            if why == "value" and producer_t >= 0 and producer_r >= 0:
                counts[self.kinds_t[producer_t], self.kinds_r[producer_r]] += 1
        return counts
