"""The comparison of two sides' gradient norms, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..model.errors import DumpError
from ..model.formatting import format_number
from ..model.stage import Stage
from ..model.verdict import Verdict
from ..rulebook import Rules, load_rules
from .norms import Norms, choose_scale
from .pairs import PairedSides, pair_sides
from .patterns import Pattern, find_patterns
from .row import Row
from .tolerance import Judgement, accept_vanishing_norms, choose_precision, judge_norms

#: For 'agree', at least this share of either side's parameters, and of the sum of squared norms,
#: must have been compared.
MIN_COVERAGE = 0.9
#: Rows that are listed as evidence, at most.
_MAX_EVIDENCE = 5
#: Unpaired parameters that are named in a message, at most.
_MAX_NAMES = 3


@dataclass(frozen=True)
class NormComparison:
    """The result of a comparison; rows are sorted by severity, the worst first."""

    target: Norms
    reference: Norms
    rows: tuple[Row, ...]
    target_unpaired: tuple[str, ...]  #: parameters of the target without a partner
    reference_unpaired: tuple[str, ...]
    n_ambiguous: int  #: rows paired by value for which another norm would fit as well
    agree_limit: float  #: relative noise of this pair of runs, up to which norms agree
    #: Beyond this, norms differ; larger than ``agree_limit`` if the precision is unknown.
    differ_limit: float
    precision: str  #: float32, bfloat16, float16, or '' if unknown
    factor: float  #: all target norms are this many times the reference norms; 1 if there is none
    coverage: tuple[float, float]  #: share of target and reference parameters that were compared
    patterns: tuple[Pattern, ...]
    notes: tuple[str, ...] = ()

    def select_rows(self, state: str) -> tuple[Row, ...]:
        """Return the rows of one state: agree, differ, inconclusive or coarse."""
        return tuple(row for row in self.rows if row.state == state)

    @property
    def verdict(self) -> Verdict:
        """Differ if any norm or a common factor differs.

        Inconclusive if the precision is unknown and decides, or if too few norms could be compared.
        """
        if self.factor != 1 or self.select_rows("differ"):
            return "differ"
        if self.select_rows("inconclusive"):
            return "inconclusive"
        coverage = min(*self.coverage, self._compute_agreeing_share())
        return "agree" if coverage >= MIN_COVERAGE else "inconclusive"

    @property
    def pattern_kind(self) -> str:
        """The kind of the first pattern, '' if there is none."""
        return self.patterns[0].kind if self.patterns else ""

    def _compute_agreeing_share(self) -> float:
        """Return the share of the rows that agree in the sum of squared norms."""
        total, agreeing = 0.0, 0.0
        scale = choose_scale(np.array([row.reference_norm for row in self.rows]))
        for row in self.rows:
            if not np.isfinite(row.reference_norm):
                continue
            square = (row.reference_norm / scale) ** 2
            total += square
            if row.state == "agree":
                agreeing += square
        return agreeing / total if total else 1.0

    def to_stage(self) -> Stage:
        """Return the comparison as one stage of a triage."""
        evidence = [pattern.summary for pattern in self.patterns]
        evidence += [row.summary for row in self.rows[:_MAX_EVIDENCE] if row.state == "differ"]
        return Stage(
            "norms",
            self.verdict,
            self._format_headline(),
            tuple(evidence or self.format_totals()),
            tuple(self._list_missing()),
        )

    def _format_headline(self) -> str:
        differing_rows = self.select_rows("differ")
        count = f"{len(differing_rows)} of {len(self.rows)} parameters' gradient norms differ"
        if self.verdict == "differ" and self.patterns:
            headline = self.patterns[0].summary
            return f"{headline}; {count}" if differing_rows else headline
        if differing_rows:
            return f"{count}, most {differing_rows[0].summary}"
        if self.verdict == "inconclusive":
            return next(self._list_missing(), "too few norms could be compared")
        worst = max((row.relative for row in self.select_rows("agree")), default=0.0)
        return f"{len(self.rows)} parameters' gradient norms equal within {format_number(worst)}"

    def _list_missing(self) -> Iterator[str]:
        """Yield what could not be decided or compared, and why."""
        inconclusive_rows = self.select_rows("inconclusive")
        coarse_rows = self.select_rows("coarse")
        finite_rows = [row for row in inconclusive_rows if np.isfinite(row.relative)]
        if finite_rows:
            worst = max(row.relative for row in finite_rows)
            median = self._compute_median()
            yield (
                f"{len(finite_rows)} norms differ by up to {format_number(worst)}, the median of"
                f" all differences is {format_number(median)}: bfloat16 rounding may cause this,"
                " float32 rounding does not; specify the precision of the runs (--precision)"
            )
        if len(inconclusive_rows) > len(finite_rows):
            yield f"{len(inconclusive_rows) - len(finite_rows)} norms are not finite on both sides"
        if coarse_rows:
            yield f"{len(coarse_rows)} norms are printed with too few digits to be compared"
        for side_name, unpaired_names in (
            ("target", self.target_unpaired),
            ("reference", self.reference_unpaired),
        ):
            if unpaired_names:
                names = ", ".join(unpaired_names[:_MAX_NAMES])
                if len(unpaired_names) > _MAX_NAMES:
                    names += ", ..."
                count = len(unpaired_names)
                yield f"{count} of the {side_name}'s parameters have no partner: {names}"

    def _compute_median(self) -> float:
        """Return the median of all finite relative differences."""
        return float(np.median([row.relative for row in self.rows if np.isfinite(row.relative)]))

    def format_totals(self) -> list[str]:
        """Return a line per side: the norm of all gradients, computed and as printed by the log."""
        lines = []
        for side_name, side in (("target", self.target), ("reference", self.reference)):
            line = f"{side_name}: {len(side)} local norms, together {side.combined_norm:.6g}"
            if np.isfinite(side.global_norm):
                line += f", printed {side.global_norm:.6g}"
            lines.append(line)
        return lines


def compare(
    target: Norms, reference: Norms, rules: Rules | None = None, precision: str = ""
) -> NormComparison:
    """Compare the target with the reference.

    ``precision`` is the dtype in which the models were computed, '' if unknown. Raises DumpError if
    no parameter could be paired.
    """
    rules = load_rules() if rules is None else rules
    sides = pair_sides(target, reference, rules)
    if not sides.pairs.pairs:
        raise DumpError(
            f"{target.path} ({len(target)} norms) and {reference.path} ({len(reference)} norms)"
            " have no parameter in common, by name or by value; give norms of the same model and"
            " step"
        )
    judgement = judge_norms(
        sides.compute_pair_norms(), choose_precision(target, reference, precision)
    )
    rows = accept_vanishing_norms(_build_rows(sides, judgement))
    target_unpaired = tuple(map(target.label, sides.pairs.target_unpaired))
    reference_unpaired = tuple(map(reference.label, sides.pairs.reference_unpaired))
    target_coverage = 1 - len(target_unpaired) / len(target)
    reference_coverage = 1 - len(reference_unpaired) / len(reference)
    return NormComparison(
        target=sides.target,
        reference=sides.reference,
        rows=tuple(sorted(rows, key=lambda row: (-row.severity, row.path))),
        target_unpaired=target_unpaired,
        reference_unpaired=reference_unpaired,
        n_ambiguous=sides.pairs.n_ambiguous,
        agree_limit=judgement.agree_limit,
        differ_limit=judgement.differ_limit,
        precision=judgement.precision,
        factor=judgement.factor,
        coverage=(target_coverage, reference_coverage),
        patterns=find_patterns(
            rows, judgement.factor, (target_unpaired, reference_unpaired), rules
        ),
        notes=tuple(_list_notes(sides)),
    )


def _build_rows(sides: PairedSides, judgement: Judgement) -> list[Row]:
    rows = []
    for pair_number, pair in enumerate(sides.pairs.pairs):
        row = Row(
            path=pair.path,
            target=" + ".join(map(sides.target.label, pair.target_indices)),
            reference=" + ".join(map(sides.reference.label, pair.reference_indices)),
            target_norm=float(judgement.target[pair_number]),
            reference_norm=float(judgement.reference[pair_number]),
            relative=float(judgement.relative[pair_number]),
            tolerance=float(judgement.tolerance[pair_number]),
            state=judgement.states[pair_number],
            evidence=pair.evidence,
        )
        rows.append(row)
    return rows


def _list_notes(sides: PairedSides) -> Iterator[str]:
    target, reference = sides.target, sides.reference
    for side_name, side in (("target", target), ("reference", reference)):
        for note in side.notes:
            yield f"{side_name}: {note}"
        for problem in side.problems:
            yield f"{side_name}: {problem}"
    steps_known = target.step is not None and reference.step is not None
    if steps_known and target.step != reference.step:
        yield (
            f"step {target.step} of the target is compared with step {reference.step} of the"
            " reference"
        )
    criteria = (("order", "their position in both lists"), ("value", "their values"))
    for evidence, criterion in criteria:
        count = sum(pair.evidence == evidence for pair in sides.pairs.pairs)
        if count:
            yield f"{count} norms were paired by {criterion}, because not both sides name them"
    if sides.pairs.n_ambiguous:
        yield f"for {sides.pairs.n_ambiguous} of them other norms would fit as well"
