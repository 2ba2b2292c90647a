"""The result of a comparison: plain data for reports and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from .errors import DumpError
from .finding import Finding
from .finding_context import FindingContext
from .reportable import Backend, Reportable
from .trace import Problem, Source
from .verdict import DIFFERING_STATES, AlignmentVerdict

_SIDES = ("target", "reference")

#: One row per pair of aligned tensors, in the order of the target's execution.
PAIR_COLUMNS: Mapping[str, str] = {
    "target": "tensor id in the target's trace",
    "reference": "tensor id in the reference's trace",
    "target_op": "the dump's own op name",
    "target_slot": "input.0, output.0, parameter.weight",
    "reference_op": "the dump's own op name",
    "reference_slot": "input.0, output.0, parameter.weight",
    "phase": "forward, backward, optimizer, communication",
    "scope": "canonical scope, '' if unknown",
    "layout": "of the target in the reference: same, reshape, transpose(0,2,1), concat(3), ...",
    "target_dtype": "",
    "reference_dtype": "",
    "target_shape": "tuple or None",
    "reference_shape": "tuple or None",
    "target_max": "", "target_min": "", "target_mean": "", "target_norm": "",
    "reference_max": "", "reference_min": "", "reference_mean": "", "reference_norm": "",
    "error": "what is judged: relative L2 of whole tensors, else the largest statistic difference",
    "metric": "what error is: relative_l2, statistics, mismatches (discrete), hash",
    "tolerance": "what error is judged against",
    "relative_l2": "||t - r|| / ||r||, whole tensors only",
    "cosine": "whole tensors only; never decides",
    "max_absolute": "largest |t - r|",
    "max_relative": "largest |t - r| / |r| over elements that are not tiny",
    "beyond": "share of elements with |t - r| > tolerance * scale",
    "nonfinite_mismatch": "elements that are NaN, Inf or mask fill on one side only",
    "masked": "elements set aside as mask fill of both sides, not compared; -1: of statistics, only"
    " the maximum was compared",
    "rounded_error": "error after rounding the wider dtype to the narrower, NaN where dtypes agree",
    "state": "introduced, amplified, propagated, isolated, agreeing, reconverged, incomparable",
    "confidence": "0..1: how certain it is that the two tensors correspond",
    "evidence": "why they are paired: value, near value, scaled value, parameter, name, structure,"
    " role, gradient, update, last, layout (docs/glossary.md)",
}  # fmt: skip

#: One row per value that was not compared, of either side.
UNCOMPARED_COLUMNS: Mapping[str, str] = {
    "side": "target or reference",
    "op": "the dump's own op name",
    "slot": "input.0, output.0, parameter.weight",
    "phase": "",
    "scope": "canonical scope, '' if unknown",
    "state": "reconverged, incomparable (it has a partner), unpaired",
    "reason": "why it was not compared",
}

#: One row per op that has no partner, of either side.
UNMATCHED_COLUMNS: Mapping[str, str] = {
    "side": "target or reference",
    "op": "the dump's own op name",
    "kind": "",
    "phase": "",
    "scope": "canonical scope, '' if unknown",
    "reason": "no tensor to compare, reconverged (agrees again later), region, ...",
}


@dataclass(frozen=True)
class Equivalence:
    """Kinds of ops that compute the same on both sides, learned where the runs agree."""

    #: kinds, in order: ('Sigmoid', 'Mul')
    target: tuple[str, ...]
    #: kinds, in order: ('Functional.silu',); of a backward call 'Functional.siluBackward'
    reference: tuple[str, ...]
    #: number of occurrences
    count: int


@dataclass(frozen=True)
class Side:
    """One of the two dumps, in figures."""

    source: Source
    ops: int
    tensors: int
    problems: tuple[Problem, ...] = ()
    files_read: int = 0  #: files of whole tensors that were read for this answer
    files_total: int = 0  #: files of whole tensors that the dump has


@dataclass(frozen=True)
class Baseline:
    """A second run of the reference, in figures.

    A spread is the error of one of the two runs against the other.
    """

    source: Source
    values: int  #: computed values of the reference whose spread was measured
    estimated: int  #: computed values whose spread was taken from the values around them
    median: float  #: of the measured spreads, NaN if there are none
    largest: float
    largest_op: str  #: the reference's op that made that value
    unusable: str = ""  #: why nothing can be judged against it, '' if it was used


@dataclass(frozen=True)
class Result(Reportable[Backend]):
    """The answer of ``dumpdiff align``: verdict, findings, coverage, and the tables they rest on.

    ``coverage[side][phase]`` is {'ops': total, 'compared': ops with at least one compared output,
    'reconverged': ops not compared whose consumers all agree, 'share': compared / total}, and the
    same of values, parameters and inputs included: 'values', 'compared_values',
    'reconverged_values', 'value_share'. For the backward phase of an API dump the ops are gradient
    slots that can be compared.
    """

    target: Side
    reference: Side
    verdict: AlignmentVerdict
    findings: tuple[Finding, ...]
    coverage: Mapping[str, Mapping[str, Mapping[str, float]]]
    #: one row per pair of aligned tensors, columns of :data:`PAIR_COLUMNS`
    pairs: pd.DataFrame
    #: one row per op without a partner, columns of :data:`UNMATCHED_COLUMNS`
    unmatched: pd.DataFrame
    #: one row per value that was not compared, columns of :data:`UNCOMPARED_COLUMNS`
    uncompared: pd.DataFrame
    #: number of values and of ops in each state: states[side][phase]['values' or 'ops'][state]
    states: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]
    learned: tuple[Equivalence, ...] = ()
    #: (target's, reference's) name of each parameter that agrees
    parameters: tuple[tuple[str, str], ...] = ()
    #: median error of the pairs that agree
    noise_floor: float = float("nan")
    #: the second run of the reference, if one was given
    baseline: Baseline | None = None
    #: sentences for a person: why inconclusive (first), defaults taken, missing edges that were
    #: bridged
    notes: tuple[str, ...] = ()
    #: what is wrong with the dumps themselves and makes the answer less certain, a clause a side
    weaknesses: tuple[str, ...] = ()
    #: bridges, verified edges, min_coverage, ...
    details: Mapping[str, Any] = field(default_factory=dict)
    #: of the first findings, if a report that draws was asked for
    finding_contexts: tuple[FindingContext, ...] = ()
    backend: Backend | None = field(default=None, repr=False, compare=False)

    @property
    def first_divergence(self) -> Finding | None:
        """The highest ranked finding that is not isolated, None if there is none."""
        for finding in self.findings:
            if finding.kind != "isolated":
                return finding
        return None

    def count_differing_values(self, phase: str | None = None) -> dict[str, int]:
        """Return the number of compared values beyond their tolerance, by state, without zeros.

        A compared value that reconverged is beyond it, too. Of the two sides the larger number
        counts. Slot pairs are in no count of values that have partners of their own: there are at
        least as many as slot pairs. Only values of ``phase`` count if one is given.
        """
        is_counted = self.pairs["evidence"] == "slot"
        if phase is not None:
            is_counted &= self.pairs["phase"] == phase
        slot_states = self.pairs.loc[is_counted, "state"].tolist()
        counts = {}
        for state in (*DIFFERING_STATES, "reconverged"):
            value_counts = [self._count_compared(side, state, phase) for side in _SIDES]
            n_values = max(*value_counts, slot_states.count(state))
            if n_values:
                counts[state] = n_values
        return counts

    def _count_compared(self, side: str, state: str, phase: str | None) -> int:
        """Return the number of compared values of a side that have a state."""
        n_values = 0
        for phase_name, units in self.states.get(side, {}).items():
            if phase not in (None, phase_name):
                continue
            n_in_state = units["values"].get(state, 0)
            if state == "reconverged":
                figures = self.coverage.get(side, {}).get(phase_name, {})
                n_in_state -= int(figures.get("reconverged_values", n_in_state))
            n_values += n_in_state
        return n_values

    def finding(self, key: int | str) -> Finding:
        """Return the finding of a rank (1 is the first) or of an id.

        Raises DumpError if there is none.
        """
        for finding in self.findings:
            if key in (finding.rank, str(finding.rank), finding.id):
                return finding
        raise DumpError(f"the result has no finding {key}; it has {len(self.findings)}")

    def __repr__(self) -> str:
        """Return the verdict and the first divergence on one line."""
        first = self.first_divergence
        where = f": {first.title}" if first is not None else ""
        counts = f"{len(self.findings)} findings, {len(self.pairs)} pairs"
        return f"<Result {self.verdict}, {counts}{where}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: verdict, first findings, and what was compared."""
        rows = [_build_notebook_row(finding) for finding in self.findings[:_NOTEBOOK_ROWS]]
        head = "".join(
            f"<th>{name}</th>" for name in ("#", "id", "kind", "phase", "finding", "causes")
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        sides = f"{escape(self.target.source.path)} against {escape(self.reference.source.path)}"
        states = "".join(f"<li>{line}</li>" for line in self._describe_states())
        return (
            f"<p><b>{self.verdict}</b>: {sides}</p>"
            f"{table if rows else ''}{f'<ul>{states}</ul>' if states else ''}"
        )

    def _describe_states(self) -> list[str]:
        """Return a line with the states of the values of each side and phase."""
        lines = []
        for side, phases in self.states.items():
            for phase, units in phases.items():
                counts = ", ".join(f"{count} {state}" for state, count in units["values"].items())
                if counts:
                    lines.append(f"{phase} values of the {side}: {counts}")
        return lines


#: Findings that a notebook shows; later ones mostly follow from these.
_NOTEBOOK_ROWS = 10


def _build_notebook_row(finding: Finding) -> str:
    causes = "; ".join(cause.text for cause in finding.causes)
    values = (str(finding.rank), finding.id, finding.kind, finding.phase, finding.title, causes)
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f"<tr>{cells}</tr>"
