"""What a step inherits from the step before: weights that differ by the noise of its update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Inheritance:
    """Errors of the weights when a step begins, which are allowed to it. They are relative L2."""

    allowed_errors: Mapping[str, float]  #: by the target's name of the parameter
    largest_error: float  #: that a weight really has, on any rank
