"""What a pairing is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: name: the same name; rule: names that mean the same; parts: a fused parameter and its parts, whose squares add up;
#: order: both lists in one order; value: the ones that are as large.
By = Literal["name", "rule", "parts", "order", "value"]


@dataclass(frozen=True)
class Couple:
    """Rows of both sides that together are the same; of a fused parameter one side has several."""

    path: str  #: canonical name, '' if no side has one
    target: tuple[int, ...]
    reference: tuple[int, ...]
    by: By


@dataclass(frozen=True)
class Pairing:
    """Everything that was paired, and the rows of both sides that were not."""

    couples: tuple[Couple, ...]
    target_alone: tuple[int, ...] = ()
    reference_alone: tuple[int, ...] = ()
    ambiguous: int = 0  #: couples by value for which another norm would fit as well
