"""Define a hypothesis: a cause, and the candidates it suggests for a fault case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..model.arrays import AnyArray
from .fault_case import FaultCase


@dataclass(frozen=True)
class Statement:
    """What is said of one side, next to the other."""

    description: str  #: continues "<place> behaves as "
    contrast: str = ""  #: continues "the <other side> ", '' if that is obvious
    parameters: Mapping[str, float] = field(default_factory=dict)  #: fitted numbers


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way in which the value of the faulty side may have been computed."""

    predicted: AnyArray  #: compared with the value of the faulty side
    description: str  #: continues "<place> behaves as "
    contrast: str = ""  #: continues "the <faithful side> ", '' if that is obvious
    recorded: str = ""  #: the numbers of both sides that the dumps hold, as a clause; '' if none
    parameters: Mapping[str, float] = field(default_factory=dict)  #: fitted numbers
    #: the same arithmetic without the change; must give the value of the faithful side. None if
    #: there is nothing to check
    unchanged: AnyArray | None = None
    cause: str = ""  #: name of the cause, '' for that of the hypothesis
    #: the candidate rounds numbers, and noise decides some of the roundings: a larger residual is
    #: accepted, see cause_search
    is_chaotic: bool = False
    #: the records show the change, such as an op that only one side has: such a candidate comes
    #: before all that explain the value as well
    is_evident: bool = False
    #: the same about the faithful side: the reference is taken as correct, so if only the target
    #: has an op, the sentence is about the target. None if the change can be on one side only
    mirror: Statement | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A cause, and a function that suggests candidates; none for cases to which it does not apply.

    The function may raise ValueError, IndexError or LinAlgError for arrays whose shapes do not fit.
    """

    cause: str
    suggest_candidates: Callable[[FaultCase], Iterable[Candidate]]
    #: it chooses among many tensors or orders, and so explains some values by chance
    is_choice: bool = False
