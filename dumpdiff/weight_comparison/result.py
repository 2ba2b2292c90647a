"""What the comparison of two checkpoints came to, as plain data for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..model.trace import Problem
from ..model.verdict import Verdict

Relation = Literal["identical", "equal", "rounded", "noise", "different"]

#: From best to worst: bit for bit; in value, where dtypes differ; after one right rounding; within a few roundings.
RELATIONS: tuple[Relation, ...] = ("identical", "equal", "rounded", "noise", "different")


@dataclass(frozen=True)
class Mistake:
    """What went wrong with a parameter."""

    kind: str  #: stable name for programs, see docs/weights.md
    said: str  #: what the target holds, in words
    holds: str = (
        ""  #: canonical name of the parameter of the reference that the target holds in its place
    )


@dataclass(frozen=True)
class Pair:
    """A parameter of the target beside what holds the same in the reference; of a fused one and parts, one part."""

    path: str  #: canonical name
    target: str
    reference: str
    evidence: str  #: name, rule, value; sum, where one side's name is a sum of several
    shape: tuple[int, int]  #: rows and columns compared
    dtypes: tuple[str, str]  #: of target and reference
    relation: Relation
    whole: str = ""  #: canonical name of the fused parameter that one side holds it in
    layout: str = ""  #: how the target's rows lie over the reference's, where not as they are
    rounding: str = ""  #: the cast that explains every difference
    error: float = 0.0  #: L2 norm of the difference over that of the reference
    largest: float = 0.0  #: largest difference
    unequal: int = 0  #: elements that differ
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
    """Are they the same weights? ``verdict``, and every parameter."""

    target: CheckpointSummary
    reference: CheckpointSummary
    verdict: Verdict
    relation: Relation  #: the worst of all pairs that are right
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]  #: parameters of the reference that the target does not have
    unknown: tuple[str, ...]  #: parameters of the target that the reference does not have
    notes: tuple[str, ...]  #: layouts that differ and are right, tied heads, padding
    coverage: float  #: share of the elements of both sides that were compared
    layer_shift: int | None = None  #: target layer i holds reference layer i + shift, where all do
    problems: tuple[Problem, ...] = ()

    @property
    def mistakes(self) -> tuple[Pair, ...]:
        """The pairs that are wrong."""
        return tuple(pair for pair in self.pairs if pair.mistake is not None)

    @property
    def correspondence(self) -> Mapping[str, str]:
        """Target name -> reference name, of pairs whose values are the same and that stand one to one."""
        seen = Counter(name for pair in self.pairs for name in (pair.target, pair.reference))
        own = {pair.target for pair in self.pairs} & {pair.reference for pair in self.pairs}
        return {
            pair.target: pair.reference
            for pair in self.pairs
            if pair.mistake is None
            and pair.evidence != "sum"
            and all(seen[name] <= 1 + (name in own) for name in (pair.target, pair.reference))
        }
