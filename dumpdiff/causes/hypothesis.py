"""What a hypothesis is: what it applies to, what it computes, how it speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..model.arrays import AnyArray
from .fault_case import FaultCase


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way in which the departing side's value may have come about."""

    predicted: AnyArray  #: what the departing side would have; compared with what it has
    description: str  #: goes on after "<place> behaves as "
    contrast: str = ""  #: what the other side does instead, '' where that goes without saying
    parameters: Mapping[str, float] = field(default_factory=dict)  #: what was solved for
    #: the same arithmetic without the change; must be what the faithful side has. None: nothing to check
    unchanged: AnyArray | None = None
    cause: str = ""  #: where the hypothesis has several, else that of the hypothesis
    #: a rounding that falls the other way here and there: much may be left, see judge._chaotic
    is_chaotic: bool = False


@dataclass(frozen=True)
class Hypothesis:
    """A cause, and the candidates it offers in a situation; none where it does not apply."""

    cause: str
    make_candidates: Callable[[FaultCase], Iterable[Candidate]]
