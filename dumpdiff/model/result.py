"""What a comparison found: plain data that every report prints and a program can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from .finding_context import Closeup
from .trace import Problem, Source

Verdict = Literal["aligned", "diverged", "inconclusive"]
#: parameter, constant (a table that no training moves) and input: given to the run; the others: made by it.
Kind = Literal[
    "introduced",
    "region",
    "parameter",
    "constant",
    "input",
    "nonfinite",
    "dtype",
    "shape",
    "missing",
]

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
    "layout": "how the target's tensor is laid out in the reference's: same, reshape, transpose(0,2,1), concat(3), ...",
    "target_dtype": "",
    "reference_dtype": "",
    "target_shape": "tuple or None",
    "reference_shape": "tuple or None",
    "target_max": "", "target_min": "", "target_mean": "", "target_norm": "",
    "reference_max": "", "reference_min": "", "reference_mean": "", "reference_norm": "",
    "error": "the number that is judged: relative L2 of whole tensors, else the largest statistic difference",
    "metric": "what error is: relative_l2, statistics, mismatches (discrete), hash",
    "tolerance": "what error is judged against",
    "relative_l2": "||t - r|| / ||r||, whole tensors only",
    "cosine": "whole tensors only; never decides",
    "max_absolute": "largest |t - r|",
    "max_relative": "largest |t - r| / |r| over elements that are not tiny",
    "beyond": "share of elements with |t - r| > tolerance * scale",
    "nonfinite_mismatch": "elements that are NaN or Inf on one side only (or of other sign)",
    "rounded_error": "error after rounding the wider dtype to the narrower, NaN where dtypes agree",
    "state": "agreeing, introduced, propagated, amplified, incomparable",
    "confidence": "0..1: how sure it is that the two tensors are the same",
    "evidence": "value, parameter, name, structure, role, layout joined by '+'",
}  # fmt: skip

#: One row per op that has no partner, of either side.
UNMATCHED_COLUMNS: Mapping[str, str] = {
    "side": "target or reference",
    "op": "the dump's own op name",
    "kind": "",
    "phase": "",
    "scope": "canonical scope, '' if unknown",
    "reason": "no tensor to compare, healed (all that follows agrees again), region, no statistics, no partner",
}


@dataclass(frozen=True)
class Cause:
    """A hypothesis that explains a finding."""

    name: str  #: epsilon, mask-missing, weight-scaled, ...; docs/explain.md lists them
    text: str  #: for a person: "layers.1.post_norm behaves as epsilon = 0.01; the reference uses 1e-05; residual 3.0e-8"
    residual: float  #: relative L2 of what it leaves unexplained
    parameters: Mapping[str, float] = field(
        default_factory=dict
    )  #: what was solved for: epsilon, factor, ...


@dataclass(frozen=True)
class Finding:
    """One place where the runs part. Says which ops, how far apart, how sure, and why."""

    rank: int  #: 1 is the first divergence
    kind: Kind
    phase: str
    scope: str  #: canonical, '' if unknown
    title: str  #: one line for a person, without the rank
    target_ops: tuple[
        str, ...
    ]  #: the dump's own names; a region lists both ends and what lies between
    reference_ops: tuple[str, ...]
    slots: tuple[tuple[str, str], ...]  #: (target slot, reference slot) of the tensors that part
    metrics: Mapping[
        str, float
    ]  #: error, input_error, relative_l2, cosine, ... of the first slot that parts
    tolerance: float
    confidence: float
    evidence: tuple[str, ...]
    source: Mapping[str, str] = field(default_factory=dict)  #: 'target'/'reference' -> file:line
    side: str = ""  #: which departs: target, reference, both or unknown; '' if not asked
    causes: tuple[Cause, ...] = ()  #: hypotheses that explain it, best first
    unexplained: str = ""  #: why there are no causes; '' if there are some, or if not asked

    @property
    def held(self) -> bool:
        """It is of what the model holds: a parameter or a constant."""
        return self.kind in ("parameter", "constant")


@dataclass(frozen=True)
class Equivalence:
    """Something learned where the runs agree: this run's ops of one side that are ops of the other."""

    target: tuple[str, ...]  #: kinds, in order: ('Sigmoid', 'Mul')
    reference: tuple[
        str, ...
    ]  #: kinds, in order: ('Functional.silu',); of a backward call 'Functional.siluBackward'
    count: int  #: how often it was seen


@dataclass(frozen=True)
class Side:
    """One of the two dumps, in figures."""

    source: Source
    ops: int
    tensors: int
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """A second run of the reference, in figures; a spread is the error of one of the two runs against the other."""

    source: Source
    values: int  #: computed values of the reference whose spread was measured
    estimated: int  #: computed values that have that of the values around them
    median: float  #: of the measured spreads, NaN if there are none
    largest: float
    largest_op: str  #: the reference's op that made that value
    unusable: str = ""  #: why nothing can be judged against it, '' if it served


@dataclass(frozen=True)
class Result:
    """Everything that ``dumpdiff align`` has to say.

    ``coverage[side][phase]`` is {'ops': total, 'compared': ops with at least one compared output, 'healed': ops not
    compared that lead to nothing but agreement, 'share': compared / total}; backward of an API dump counts gradient
    slots that can be compared.
    """

    target: Side
    reference: Side
    verdict: Verdict
    findings: tuple[Finding, ...]
    coverage: Mapping[str, Mapping[str, Mapping[str, float]]]
    pairs: pd.DataFrame
    unmatched: pd.DataFrame
    learned: tuple[Equivalence, ...] = ()
    parameters: tuple[
        tuple[str, str], ...
    ] = ()  #: (target's, reference's) name of each parameter that agrees
    noise_floor: float = float("nan")  #: median error of the pairs that agree
    baseline: Baseline | None = None  #: the second run of the reference, if one was given
    notes: tuple[
        str, ...
    ] = ()  #: sentences for a person: why inconclusive (first), defaults taken, bridged holes
    details: Mapping[str, Any] = field(
        default_factory=dict
    )  #: bridges, verified edges, min_coverage, ...
    closeups: tuple[
        Closeup, ...
    ] = ()  #: of the first findings, if a report that draws was asked for

    @property
    def first_divergence(self) -> Finding | None:
        """The highest ranked finding, None if there is none."""
        return self.findings[0] if self.findings else None
