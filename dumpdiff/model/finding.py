"""A finding: one place where two runs diverge, with its evidence and its causes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import DumpError

#: What diverges. ``parameter``, ``constant`` (a table that training does not change) and ``input``
#: are given to the run; ``isolated`` is a difference in one record that nothing follows from; all
#: other kinds are about what the run computes.
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
    "isolated",
]

#: Hexadecimal digits of an id. A result has at most a few thousand findings, so that two equal ids
#: are improbable: 1,000 findings clash with a probability of about 1e-4.
_ID_LENGTH = 8


@dataclass(frozen=True)
class Cause:
    """A hypothesis that explains a finding."""

    #: ``epsilon``, ``mask-missing``, ``weight-scaled``, ...; docs/explain.md lists all
    name: str
    #: one sentence: "layers.1.post_norm behaves as epsilon = 0.01; the reference uses 1e-05;
    #: residual 3.0e-8"
    text: str
    #: relative L2 of what the hypothesis leaves unexplained
    residual: float
    #: numbers that were solved for: epsilon, factor, ...
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One place where the runs diverge: which ops, how far, with which confidence, and why."""

    #: position in the result, 1 is the first divergence
    rank: int
    kind: Kind
    phase: str
    #: canonical module path, '' if unknown
    scope: str
    #: one line for a person, without the rank
    title: str
    #: the dump's own op names; a region lists both ends and what is between them
    target_ops: tuple[str, ...]
    reference_ops: tuple[str, ...]
    #: (target slot, reference slot) of the tensors that diverge
    slots: tuple[tuple[str, str], ...]
    #: error, input_error, relative_l2, cosine, ... of the first slot that diverges
    metrics: Mapping[str, float]
    tolerance: float
    confidence: float
    evidence: tuple[str, ...]
    #: 'target' and 'reference' -> file:line of the user's code
    source: Mapping[str, str] = field(default_factory=dict)
    #: the side that is wrong: target, reference, both or unknown; '' if the finding was not
    #: explained
    side: str = ""
    #: hypotheses that explain it, best first
    causes: tuple[Cause, ...] = ()
    #: why there are no causes; '' if there are some, or if the finding was not explained
    unexplained: str = ""
    #: how :meth:`explain` is done; set by the library when it makes or loads a result
    explainer: Callable[[Finding], Finding] | None = field(default=None, repr=False, compare=False)

    @property
    def id(self) -> str:
        """A short identity made of kind, ops and slots; it does not depend on rules for names.

        Commands take it in place of the rank, and the HTML report uses it as an anchor.
        """
        slots = [slot for pair in self.slots for slot in pair]
        text = "\0".join((self.kind, *self.target_ops, "", *self.reference_ops, "", *slots))
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]

    @property
    def is_given(self) -> bool:
        """Whether it is about something that the model holds: a parameter or a constant."""
        return self.kind in ("parameter", "constant")

    def explain(self) -> Finding:
        """Return this finding with its causes.

        Raises DumpError if the dumps are no longer where they were, or if the finding was not made
        by the library.
        """
        if self.causes or self.unexplained:
            return self
        if self.explainer is None:
            raise DumpError(
                "this finding has no dumps: it was not made by dumpdiff.align or dumpdiff.load"
            )
        return self.explainer(self)
