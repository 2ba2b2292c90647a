"""One parameter of both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..model.formatting import number
from .pairs import By
from .parameter_place import depth_of, is_vector, kind_of, layer_of

#: unclear: beyond what float32 does, within what the whole pair does; coarse: too few digits to tell anything.
State = Literal["agree", "differ", "unclear", "coarse"]


@dataclass(frozen=True)
class Row:
    """A parameter's gradient norms, the roots; of a fused parameter the parts' together."""

    path: str  #: canonical name, '' if unknown
    target: str  #: name, or '#3' for the third of a list; parts with ' + ' between
    reference: str
    target_norm: float
    reference_norm: float
    relative: float  #: difference relative to the reference, after a factor that all have; infinite where that is 0
    tolerance: float
    state: State
    by: By

    def norm(self, side: str) -> float:
        """The norm of the 'target' or the 'reference'."""
        return self.target_norm if side == "target" else self.reference_norm

    @property
    def label(self) -> str:
        """The canonical name, else the name of the side that has one, else the places in both lists: ``#17/#13``."""
        bare = self.target.startswith("#")
        if self.path or not (bare and self.reference.startswith("#")):
            return self.path or (self.reference if bare else self.target)
        return self.target if self.target == self.reference else f"{self.target}/{self.reference}"

    @property
    def said(self) -> str:
        """One line for a person."""
        off = f", off by {number(self.relative)}" if math.isfinite(self.relative) else ""
        return f"{self.label}: {self.target_norm:.5g} against {self.reference_norm:.5g}{off}"

    @property
    def beyond(self) -> float:
        """How many times the tolerance it is off; what cannot be told comes after what differs."""
        times = self.relative / max(self.tolerance, 1e-300)
        rank = {"differ": 2e9, "unclear": 1e9}.get(self.state, 0.0)
        return rank + (min(times, 1e8) if math.isfinite(times) else 2e8)

    @property
    def layer(self) -> int | None:
        """The number of its layer, None if it is in none."""
        return layer_of(self.path)

    @property
    def depth(self) -> int | None:
        """Its place in the model, see :func:`depth_of`."""
        return depth_of(self.path)

    @property
    def kind(self) -> str:
        """Its name without the layer, see :func:`kind_of`."""
        return kind_of(self.path)

    @property
    def vector(self) -> bool:
        """Whether it has one axis, see :func:`is_vector`."""
        return is_vector(self.path)
