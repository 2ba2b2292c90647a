"""Two sides' gradient norms against each other: every parameter judged, and what the differing ones have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...arrays import Floats
from ...errors import DumpError
from ...rules import Rules, load_rules
from ...wording import number
from ..stage import Stage, Verdict
from . import judging
from .judging import Judged
from .pairing import Pairing, pair
from .patterns import Pattern, patterns
from .row import Row
from .side import Norms

#: Share of either side's parameters that must have been compared for 'agree', and of their squares.
MIN_COVERAGE = 0.9
_CLEARLY = 3.0  #: times nearer must the sides be, for one reading of a list (squares or roots) to be the right one
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
    noise: float  #: relative: what rounding is taken to do to this pair
    precision: str  #: float32, bfloat16 or float16 where it is known or was said, else ''
    factor: float  #: all norms of the target are this many times the reference's; 1 if they are not
    coverage: tuple[float, float]  #: share of the parameters of target and reference that were compared
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
        return Stage("norms", self.verdict, self._headline(), tuple(evidence or self.totals()), tuple(self._missing()))

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


def compare(target: Norms, reference: Norms, rules: Rules | None = None, precision: str = "") -> NormComparison:
    """Judge ``target`` by ``reference``; ``precision`` is the dtype that the models were computed in, if it is known.

    Raises DumpError if nothing could be paired.
    """
    rules = load_rules() if rules is None else rules
    target, reference, pairing = _read_alike(target, reference, rules)
    if not pairing.couples:
        raise DumpError(
            f"{target.path} ({len(target)} norms) and {reference.path} ({len(reference)} norms) have no parameter in"
            " common, by name or by value; give norms of the same model and step"
        )
    judged = judging.judge(_values(target, reference, pairing), judging.precision_of(target, reference, precision))
    rows = _rows(target, reference, pairing, judged)
    alone = [side.label(row) for side, left in _alone(target, reference, pairing) for row in left]
    split = len(pairing.target_alone)
    return NormComparison(
        target=target,
        reference=reference,
        rows=tuple(sorted(rows, key=lambda row: (-row.beyond, row.path))),
        target_alone=tuple(alone[:split]),
        reference_alone=tuple(alone[split:]),
        ambiguous=pairing.ambiguous,
        noise=judged.noise,
        precision=judged.precision,
        factor=judged.factor,
        coverage=(
            1 - len(pairing.target_alone) / len(target),
            1 - len(pairing.reference_alone) / len(reference),
        ),
        patterns=patterns(rows, judged.factor, (tuple(alone[:split]), tuple(alone[split:])), rules),
        notes=tuple(_notes(target, reference, pairing)),
    )


def _read_alike(target: Norms, reference: Norms, rules: Rules) -> tuple[Norms, Norms, Pairing]:
    """Both sides as roots; of a list that may hold squares, the reading under which the sides agree better."""
    ways = [(False, True) if side.squared is None else (side.squared,) for side in (target, reference)]
    tried = []
    for mine in ways[0]:
        for theirs in ways[1]:
            if mine and theirs and target.squared is None and reference.squared is None:
                continue  # both squares or both roots: nobody can tell, and nothing depends on it
            sides = replace(target, squared=mine), replace(reference, squared=theirs)
            pairing = pair(*sides, rules)
            tried.append((_apart(*sides, pairing), *sides, pairing))
    best = min(tried, key=lambda one: one[0])
    first = tried[0]  # both as roots
    if len(tried) == 1 or (best is not first and best[0] * _CLEARLY > first[0]):
        best = first
    chosen = [best[1], best[2]]
    for i, side in enumerate((target, reference)):
        if side.squared is None:
            what = "squares" if chosen[i].squared else "roots"
            why = "so the sides agree best" if best is not first or len(tried) > 1 else "nothing says otherwise"
            chosen[i] = replace(chosen[i], because=f"taken as {what}: {why}")
    return chosen[0], chosen[1], best[3]


def _apart(target: Norms, reference: Norms, pairing: Pairing) -> float:
    """The median distance of the pairs, as a logarithm; what is alone is far."""
    a, b, slack = _values(target, reference, pairing)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.maximum(np.abs(np.log(a / b)) - slack / b, 0)
    far = np.where(np.isfinite(far), far, 10.0)
    lost = max(len(pairing.target_alone), len(pairing.reference_alone))
    return float(np.median([*far.tolist(), *[10.0] * lost])) if len(far) + lost else 10.0


def _values(target: Norms, reference: Norms, pairing: Pairing) -> tuple[Floats, Floats, Floats]:
    """Per couple: the target's norm, the reference's, and what digits leave open of both together, absolute."""
    t, r = target.values, reference.values
    slack_t, slack_r = target.slack, reference.slack
    found = np.array(
        [
            (*_together(t, slack_t, couple.target), *_together(r, slack_r, couple.reference))
            for couple in pairing.couples
        ]
    ).reshape(-1, 4)
    return found[:, 0], found[:, 2], found[:, 1] + found[:, 3]


def _together(values: Floats, slack: Floats, rows: tuple[int, ...]) -> tuple[float, float]:
    """The norm of several parameters as one, and what digits leave open of it."""
    if len(rows) == 1:
        return float(values[rows[0]]), float(slack[rows[0]])
    parts, open_ = values[list(rows)], slack[list(rows)]
    norm = float(np.sqrt(np.sum(parts**2)))
    return norm, float(np.sum(parts * open_)) / norm if norm else float(np.sum(open_))


def _rows(target: Norms, reference: Norms, pairing: Pairing, judged: Judged) -> list[Row]:
    rows = []
    for at, couple in enumerate(pairing.couples):
        rows.append(
            Row(
                path=couple.path,
                target=" + ".join(map(target.label, couple.target)),
                reference=" + ".join(map(reference.label, couple.reference)),
                target_norm=float(judged.target[at]),
                reference_norm=float(judged.reference[at]),
                relative=float(judged.relative[at]),
                tolerance=float(judged.tolerance[at]),
                state=judged.states[at],
                by=couple.by,
            )
        )
    return judging.without_vanishing(rows)


def _alone(target: Norms, reference: Norms, pairing: Pairing) -> list[tuple[Norms, tuple[int, ...]]]:
    return [(target, pairing.target_alone), (reference, pairing.reference_alone)]


def _notes(target: Norms, reference: Norms, pairing: Pairing) -> Iterator[str]:
    for role, side in (("target", target), ("reference", reference)):
        yield from (f"{role}: {note}" for note in side.notes)
        yield from (f"{role}: {problem}" for problem in side.problems)
    if target.step is not None and reference.step is not None and target.step != reference.step:
        yield f"step {target.step} of the target is compared with step {reference.step} of the reference"
    for by, how in (("order", "their place in both lists"), ("value", "their values")):
        count = sum(couple.by == by for couple in pairing.couples)
        if count:
            yield f"{count} norms were paired by {how}, since not both sides name them"
    if pairing.ambiguous:
        yield f"for {pairing.ambiguous} of them others would fit as well"
