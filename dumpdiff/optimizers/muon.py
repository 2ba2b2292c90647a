"""Muon: the momentum of a matrix, made nearly orthogonal.

Sources: https://kellerjordan.github.io/posts/muon/ (iteration, coefficients); Liu et al., arXiv:2502.16982 (the scale
that matches AdamW); the documentation of torch.optim.Muon. MindSpore Transformers' Muon has the second scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF
from .history import History
from .rule import DECOUPLED, MOMENTUM_KIND, NO_DECAY, SCALE, UpdateTerms, HyperparameterValues

ORIGINAL, MATCHED = "original scale", "scale matched to AdamW"
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_TINY = 1e-7


@dataclass(frozen=True)
class Muon:
    """b <- momentum b + g; moves along the orthogonal factor of b, or of g + momentum b."""

    nesterov: bool = True
    decay: str = NO_DECAY
    scale: str = ORIGINAL

    family = "Muon"
    elementwise = False

    @property
    def name(self) -> str:
        """Muon with what it has."""
        parts = ["Muon", self.scale] if self.scale != ORIGINAL else ["Muon"]
        parts += [] if self.nesterov else ["no Nesterov momentum"]
        return ", ".join(parts + (["decoupled decay"] if self.decay == DECOUPLED else []))

    @property
    def aspects(self) -> Mapping[str, str]:
        """Kind of momentum, and the scale."""
        return {
            MOMENTUM_KIND: f"{'Nesterov' if self.nesterov else 'plain'} momentum",
            SCALE: self.scale,
        }

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The number of iterations and their coefficients are the same everywhere."""
        return ("momentum",)

    @property
    def complexity(self) -> int:
        """Nesterov's and the original scale are the defaults."""
        return (not self.nesterov) + (self.decay != NO_DECAY) + (self.scale != ORIGINAL)

    @property
    def essence(self) -> Muon:
        """All of it."""
        return self

    @property
    def steps_to_identify(self) -> int:
        """In the first step the momentum is the gradient."""
        return 2

    @property
    def without_decay(self) -> Muon:
        """The same without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Muon, ...]:
        """Without decay."""
        return (self.without_decay,) if self.decay != NO_DECAY else ()

    def compute_terms(self, history: History, factors: Floats, numbers: HyperparameterValues) -> UpdateTerms:
        """The orthogonalised momentum of a whole matrix times its scale."""
        rows, columns = history.shape
        ratio = (
            np.sqrt(max(1.0, rows / columns))
            if self.scale == ORIGINAL
            else 0.2 * np.sqrt(max(rows, columns))
        )
        buffer = np.zeros(history.gradients.shape[1]) if history.first_moment is None else history.first_moment
        made = np.empty_like(history.gradients)
        for t, recorded in enumerate(history.gradients):
            gradient = factors[t] * recorded
            buffer = numbers["momentum"] * buffer + gradient
            heading = gradient + numbers["momentum"] * buffer if self.nesterov else buffer
            made[t] = ratio * orthogonalize(heading.reshape(history.shape)).reshape(-1)
        return UpdateTerms(made, history.weights[:-1] if self.decay == DECOUPLED else None)

    def estimate_precision(self, numbers: HyperparameterValues) -> float:
        """The frameworks iterate in bfloat16; each iteration multiplies what it was given by up to 3.4."""
        return 6 * UNIT_ROUNDOFF["bfloat16"]


def orthogonalize(matrix: Floats) -> Floats:
    """Newton-Schulz: five steps of a quintic that draws all singular values towards one (they end in 0.7 to 1.2)."""
    a, b, c = _COEFFICIENTS
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / max(float(np.linalg.norm(x)), _TINY)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Floats = x.T if matrix.shape[0] > matrix.shape[1] else x
    return result


def list_variants() -> tuple[Muon, ...]:
    """Every combination."""
    return tuple(
        Muon(nesterov, decay, scale)
        for nesterov in (True, False)
        for decay in (NO_DECAY, DECOUPLED)
        for scale in (ORIGINAL, MATCHED)
    )
