"""What two sides' norms say together: the verdict, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..model.formatting import number
from ..model.stage import Stage, Verdict
from .patterns import Pattern
from .row import Row
from .side import Norms

#: Share of either side's parameters that must have been compared for 'agree', and of their squares.
MIN_COVERAGE = 0.9
_SHOWN = 5  #: rows that are evidence


@dataclass(frozen=True)
class NormComparison:
    """Everything that two sides' norms say together; rows by how far they are beyond what is allowed, worst first."""

    target: Norms
    reference: Norms
    rows: tuple[Row, ...]
    target_alone: tuple[str, ...]  #: parameters of the target without a partner
    reference_alone: tuple[str, ...]
    ambiguous: int  #: rows paired by value for which another norm would fit as well
    allowed: float  #: relative: what rounding is taken to do to this pair, so that norms agree
    noise: float  #: beyond this they differ; more than ``allowed`` where the precision is not known
    precision: str  #: float32, bfloat16 or float16 where it is known or was said, else ''
    factor: float  #: all norms of the target are this many times the reference's; 1 if they are not
    coverage: tuple[
        float, float
    ]  #: share of the parameters of target and reference that were compared
    patterns: tuple[Pattern, ...]
    notes: tuple[str, ...] = ()

    def of_state(self, state: str) -> tuple[Row, ...]:
        """Rows of one state: agree, differ, unclear or coarse."""
        return tuple(row for row in self.rows if row.state == state)

    @property
    def verdict(self) -> Verdict:
        """differ if a norm does; unclear if rounding of a precision not known, or too few digits or pairs, decide."""
        if self.factor != 1 or self.of_state("differ"):
            return "differ"
        told = [row for row in self.rows if row.state in ("agree", "differ")]
        enough = self._share(told) >= MIN_COVERAGE and min(self.coverage) >= MIN_COVERAGE
        return "unclear" if self.of_state("unclear") or not enough else "agree"

    @property
    def pattern(self) -> str:
        """The kind of the most telling pattern, '' if there is none."""
        return self.patterns[0].kind if self.patterns else ""

    def _share(self, rows: list[Row]) -> float:
        """The share of some rows in the sum of squares."""
        whole = sum(row.reference_norm**2 for row in self.rows if np.isfinite(row.reference_norm))
        return sum(row.reference_norm**2 for row in rows) / whole if whole else 1.0

    def stage(self) -> Stage:
        """The comparison as one stage of a triage."""
        evidence = [pattern.said for pattern in self.patterns]
        evidence += [row.said for row in self.rows[:_SHOWN] if row.state == "differ"]
        return Stage(
            "norms",
            self.verdict,
            self._headline(),
            tuple(evidence or self.totals()),
            tuple(self._missing()),
        )

    def _headline(self) -> str:
        differing = self.of_state("differ")
        many = f"{len(differing)} of {len(self.rows)} parameters' gradient norms differ"
        if self.verdict == "differ" and self.patterns:
            return self.patterns[0].said + (f"; {many}" if differing else "")
        if differing:
            return f"{many}, most {differing[0].said}"
        if self.verdict == "unclear":
            return next(self._missing(), "too little could be compared")
        worst = max((row.relative for row in self.rows if row.state == "agree"), default=0.0)
        return f"{len(self.rows)} parameters' gradient norms equal within {number(worst)}"

    def _missing(self) -> Iterator[str]:
        unclear, coarse = self.of_state("unclear"), self.of_state("coarse")
        finite = [row for row in unclear if np.isfinite(row.relative)]
        if finite:
            worst = max(row.relative for row in finite)
            yield (
                f"{len(finite)} norms differ by up to {number(worst)}, half of all by {number(self._median())}:"
                " rounding in bfloat16 may do that, in float32 it does not; say which the runs use (--precision)"
            )
        if len(unclear) > len(finite):
            yield f"{len(unclear) - len(finite)} norms are not finite on both sides"
        if coarse:
            yield f"{len(coarse)} norms are printed with too few digits to be compared"
        for role, alone in (("target", self.target_alone), ("reference", self.reference_alone)):
            if alone:
                few = ", ".join(alone[:3]) + (", ..." if len(alone) > 3 else "")
                yield f"{len(alone)} of the {role}'s parameters have no partner: {few}"

    def _median(self) -> float:
        return float(np.median([row.relative for row in self.rows if np.isfinite(row.relative)]))

    def totals(self) -> list[str]:
        """The global norms, as printed and as the local ones give them."""
        said = []
        for role, side in (("target", self.target), ("reference", self.reference)):
            printed = f", printed {side.total:.6g}" if np.isfinite(side.total) else ""
            said.append(f"{role}: {len(side)} local norms, together {side.sum:.6g}{printed}")
        return said
