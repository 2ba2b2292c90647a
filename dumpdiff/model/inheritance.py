"""What a step inherits from the step before: weights that differ by the noise of its update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Error of a computed value over the largest error of the weights, up to which it follows from
#: them: as much as ``divergence.forward_walk`` allows an error to grow from op to op before it has
#: a cause of its own. An error may be in one half of a tensor that is cut, and gradients add those
#: of all layers.
MAX_GROWTH = 10.0


@dataclass(frozen=True)
class Inheritance:
    """Errors of the weights when a step begins, which are allowed to it. They are relative L2."""

    allowed_errors: Mapping[str, float]  #: by the target's name of the parameter
    largest_error: float  #: that a weight really has, on any rank
