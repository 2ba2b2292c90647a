"""A fault of a family, with what a right explanation of it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from claims import Claim

#: Returns a model of the family with the fault.
Change = Callable[[Any], Any]
#: Takes the faulty and the clean model; returns what a right sentence says. Empty if the fault has
#: no number and no name: then the right cause is enough.
Claims = Callable[[Any, Any], Sequence[Claim]]


def claim_nothing(faulty: Any, clean: Any) -> Sequence[Claim]:
    """Return no claim."""
    return ()


@dataclass(frozen=True)
class Fault:
    """One fault, its cause as ``dumpdiff explain`` names it, and how it changes a model."""

    summary: str
    cause: str
    apply: Change
    claims: Claims = claim_nothing
    row: str = ""  #: of a survey of published bugs
    held_out: bool = False
    optimizer: bool = False  #: shows only in the optimizer step
    #: further causes that are as right as ``cause``, as another description of the same difference
    equivalents: tuple[str, ...] = ()


def change_model(**knobs: object) -> Change:
    """Return a change of knobs."""
    return lambda model: replace(model, **knobs)


def change_optimizer(**knobs: object) -> Change:
    """Return a change of the rule of the update."""
    return lambda model: replace(model, optimizer=replace(model.optimizer, **knobs))


def change_weight(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Return a change of one weight."""

    def apply(model: Any) -> Any:
        values = np.ascontiguousarray(change(model.weights[name].copy()), dtype=np.float32)
        weights: Mapping[str, np.ndarray] = {**model.weights, name: values}
        return replace(model, weights=weights)

    return apply
