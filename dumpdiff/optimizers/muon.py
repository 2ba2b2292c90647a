"""Muon: the momentum of a matrix, made nearly orthogonal.

Sources: https://kellerjordan.github.io/posts/muon/ (iteration, coefficients); Liu et al.,
arXiv:2502.16982 (the scale that matches AdamW); the documentation of torch.optim.Muon. MindSpore
Transformers' Muon has the second scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF
from .history import History
from .rule import (
    DECOUPLED,
    MOMENTUM_KIND,
    NO_DECAY,
    SCALE,
    HyperparameterValues,
    UpdateTerms,
)

ORIGINAL, MATCHED = "original scale", "scale matched to AdamW"
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7  #: avoids a division by zero
#: Rounding of an update in units of bfloat16's unit roundoff. The frameworks iterate in bfloat16,
#: and each iteration multiplies its input by up to 3.4.
_ROUNDINGS = 6


@dataclass(frozen=True)
class Muon:
    """b <- momentum b + g; w moves along the orthogonal factor of b, or of g + momentum b."""

    nesterov: bool = True
    decay: str = NO_DECAY
    scale: str = ORIGINAL

    family = "Muon"
    elementwise = False
    needs_matrix = True
    starts_from_zero = False
    needs_one_rate = False

    @property
    def name(self) -> str:
        """Muon with all that is not the default."""
        parts = ["Muon"]
        if self.scale != ORIGINAL:
            parts.append(self.scale)
        if not self.nesterov:
            parts.append("no Nesterov momentum")
        if self.decay == DECOUPLED:
            parts.append("decoupled decay")
        return ", ".join(parts)

    @property
    def aspects(self) -> Mapping[str, str]:
        """Kind of momentum, and the scale."""
        momentum = "Nesterov momentum" if self.nesterov else "plain momentum"
        return {MOMENTUM_KIND: momentum, SCALE: self.scale}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The number of iterations and their coefficients are the same in all frameworks."""
        return ("momentum",)

    @property
    def complexity(self) -> int:
        """Nesterov momentum and the original scale are the defaults."""
        return (not self.nesterov) + (self.decay != NO_DECAY) + (self.scale != ORIGINAL)

    @property
    def essence(self) -> Muon:
        """The rule itself."""
        return self

    @property
    def steps_to_identify(self) -> int:
        """In the first step the momentum is the gradient."""
        return 2

    @property
    def without_decay(self) -> Muon:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Muon, ...]:
        """The rule without decay."""
        return (self.without_decay,) if self.decay != NO_DECAY else ()

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the orthogonalized momentum of a full matrix times its scale."""
        rows, columns = history.shape
        if self.scale == ORIGINAL:
            scale = np.sqrt(max(1.0, rows / columns))
        else:
            scale = 0.2 * np.sqrt(max(rows, columns))
        momentum = values["momentum"]
        buffer = history.first_moment
        if buffer is None:
            buffer = np.zeros(history.gradients.shape[1])
        directions = np.empty_like(history.gradients)
        for step, recorded_gradient in enumerate(history.gradients):
            gradient = factors[step] * recorded_gradient
            buffer = momentum * buffer + gradient
            heading = gradient + momentum * buffer if self.nesterov else buffer
            factor = orthogonalize(heading.reshape(history.shape))
            directions[step] = scale * factor.reshape(-1)
        return UpdateTerms(directions, history.weights[:-1] if self.decay == DECOUPLED else None)

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update; the frameworks iterate in bfloat16."""
        return _ROUNDINGS * UNIT_ROUNDOFF["bfloat16"]


def orthogonalize(matrix: Floats) -> Floats:
    """Return a nearly orthogonal matrix with the same singular vectors (Newton-Schulz).

    Five steps of a quintic move all singular values towards one; they end between 0.7 and 1.2.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / max(float(np.linalg.norm(x)), _SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Floats = x.T if is_tall else x
    return result


def list_variants() -> tuple[Muon, ...]:
    """Return all variants."""
    choices = product((True, False), (NO_DECAY, DECOUPLED), (ORIGINAL, MATCHED))
    return tuple(Muon(*choice) for choice in choices)
