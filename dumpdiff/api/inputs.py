"""What a comparison of two dumps depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .. import readers
from ..model.defaults import MIN_COVERAGE
from ..model.inheritance import Inheritance
from ..readers.parts import Part
from ..rulebook import Rules, load_rules

PathLike = str | Path
#: Parts of the target and of the reference that the two to compare are chosen from.
Candidates = tuple[list[Part], list[Part]]

_MAX_LISTED = 6  #: folders and files that cannot be read


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
    #: folders of ``dumpdiff narrow`` whose dumps complete the two with whole tensors
    narrowed: tuple[PathLike, ...] = ()
    #: parsed ``rules``
    book: Rules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Load the rules, so that a wrong rule file is reported before any dump is read."""
        object.__setattr__(self, "book", load_rules([Path(file) for file in self.rules]))

    def find_parts(self) -> Candidates:
        """Return everything that the target and the reference hold. Raises DumpError."""
        target = readers.find_parts(self.target, accept_tensors=True)
        return target, readers.find_parts(self.reference, accept_tensors=True)

    def describe_unreadable(self) -> tuple[str, ...]:
        """Return a sentence for each folder or file of a side that cannot be read, or a few."""
        sentences = []
        for side, path in (("target", self.target), ("reference", self.reference)):
            problems = readers.find_unreadable(path)
            sentences += [f"of the {side}, {problem}" for problem in problems[:_MAX_LISTED]]
            n_more = len(problems) - _MAX_LISTED
            if n_more > 0:
                sentences.append(f"of the {side}, {n_more} more cannot be read")
        return tuple(sentences)

    def choose_of_parts(self, parts: Candidates) -> tuple[Part, Part]:
        """Return the step, rank and graph of either dump that are compared, of all its parts.

        Raises DumpError if there are none.
        """
        return readers.choose_parts(*parts, step=self.step, rank=self.rank, graph=self.graph)


def format_align_command(inputs: Inputs, min_coverage: float) -> list[str]:
    """Return the words of the command that repeats a comparison, also from another folder."""
    words = ["dumpdiff", "align", _format_path(inputs.target), _format_path(inputs.reference)]
    for option, number in (
        ("--step", inputs.step),
        ("--rank", inputs.rank),
        ("--graph", inputs.graph),
    ):
        if number is not None:
            words += [option, str(number)]
    for option, paths in (
        ("--baseline", (inputs.baseline,)),
        ("--rules", inputs.rules),
        ("--weights-target", (inputs.weights_target,)),
        ("--weights-reference", (inputs.weights_reference,)),
        ("--narrowed", inputs.narrowed),
    ):
        for path in paths:
            words += [] if path is None else [option, _format_path(path)]
    if min_coverage != MIN_COVERAGE:
        words += ["--min-coverage", str(min_coverage)]
    if inputs.verify:
        words.append("--verify")
    return words


def _format_path(path: PathLike) -> str:
    return str(Path(path).absolute())
