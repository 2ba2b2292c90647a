"""What a comparison of two dumps depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .. import readers
from ..model.inheritance import Inheritance
from ..readers.parts import Part
from ..rulebook import Rules, load_rules

PathLike = str | Path
#: Parts of the target and of the reference that the two to compare are chosen from.
Candidates = tuple[list[Part], list[Part]]


@dataclass(frozen=True)
class Inputs:
    """Everything that a comparison of two dumps depends on.

    The same inputs give the same result.
    """

    target: PathLike
    reference: PathLike
    step: int | None = None
    rank: int | None = None
    graph: int | None = None
    #: a second run of the reference
    baseline: PathLike | None = None
    #: further rule files
    rules: tuple[PathLike, ...] = ()
    #: checkpoints that name the parameters of a side by their values
    weights_target: PathLike | None = None
    weights_reference: PathLike | None = None
    #: read and check every file of both dumps
    verify: bool = False
    #: what the weights may differ by when the step begins
    inheritance: Inheritance | None = None
    #: parsed ``rules``
    book: Rules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Load the rules, so that a wrong rule file is reported before any dump is read."""
        object.__setattr__(self, "book", load_rules([Path(file) for file in self.rules]))

    def find_parts(self) -> Candidates:
        """Return everything that the target and the reference hold. Raises DumpError."""
        target = readers.find_parts(self.target, accept_tensors=True)
        return target, readers.find_parts(self.reference, accept_tensors=True)

    def choose_of_parts(self, parts: Candidates) -> tuple[Part, Part]:
        """Return the step, rank and graph of either dump that are compared, of all its parts.

        Raises DumpError if there are none.
        """
        return readers.choose_parts(*parts, step=self.step, rank=self.rank, graph=self.graph)
