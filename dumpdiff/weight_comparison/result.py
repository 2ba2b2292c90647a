"""The result of comparing two checkpoints, as plain data for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..model.trace import Problem
from ..model.verdict import Verdict

Relation = Literal["identical", "equal", "rounded", "noise", "different"]

#: From best to worst: equal bits; equal values in other dtypes; equal after one correct rounding;
#: computed, and equal within a few roundings; different.
RELATIONS: tuple[Relation, ...] = ("identical", "equal", "rounded", "noise", "different")

#: Share of the elements of both sides that must be compared for 'agree'.
MIN_COVERAGE = 0.9


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a parameter."""

    kind: str  #: stable name for programs, see docs/weights.md
    summary: str  #: what the target holds, as text
    #: Canonical name of the reference parameter that the target holds instead.
    actual_parameter: str = ""


@dataclass(frozen=True)
class Pair:
    """A parameter, or one component of a fused one, with its counterpart in the reference."""

    path: str  #: canonical name
    target: str
    reference: str
    evidence: str  #: name, rule, value; or sum, if one side's name is a sum of several
    shape: tuple[int, int]  #: rows and columns compared
    dtypes: tuple[str, str]  #: of target and reference
    relation: Relation
    #: Canonical name of the fused parameter that contains this component on one side.
    fused_parameter: str = ""
    layout: str = (
        ""  #: how the target's rows are arranged compared with the reference, if differently
    )
    rounding: str = ""  #: the cast that explains every difference
    error: float = 0.0  #: L2 norm of the difference over that of the reference
    max_absolute: float = 0.0  #: largest absolute difference
    differing_elements: int = 0  #: number of elements that differ
    elements: int = 0
    mistake: Mistake | None = None


@dataclass(frozen=True)
class CheckpointSummary:
    """One of the two checkpoints."""

    path: str
    format: str
    family: str
    tensors: int
    bytes: int


@dataclass(frozen=True)
class WeightsResult:
    """Whether two checkpoints have the same weights, with every parameter."""

    target: CheckpointSummary
    reference: CheckpointSummary
    verdict: Verdict
    relation: Relation  #: the worst of all pairs without a mistake
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]  #: parameters of the reference that the target does not have
    unknown: tuple[str, ...]  #: parameters of the target that the reference does not have
    notes: tuple[str, ...]  #: layouts that differ but are correct, tied heads, padding
    coverage: float  #: share of the elements of both sides that were compared
    layer_shift: int | None = (
        None  #: target layer i holds reference layer i + shift, for all layers
    )
    problems: tuple[Problem, ...] = ()

    @property
    def mistakes(self) -> tuple[Pair, ...]:
        """The pairs with a mistake."""
        return tuple(pair for pair in self.pairs if pair.mistake is not None)

    @property
    def correspondence(self) -> Mapping[str, str]:
        """Target name -> reference name, of one-to-one pairs with equal values."""
        counts: Counter[str] = Counter()
        for pair in self.pairs:
            counts.update((pair.target, pair.reference))
        target_names = {pair.target for pair in self.pairs}
        shared_names = target_names & {pair.reference for pair in self.pairs}
        correspondence = {}
        for pair in self.pairs:
            if pair.mistake is not None or pair.evidence == "sum":
                continue
            # A name that exists on both sides is counted once for each side.
            if all(
                counts[name] <= 1 + (name in shared_names) for name in (pair.target, pair.reference)
            ):
                correspondence[pair.target] = pair.reference
        return correspondence
