"""LAMB: a step of Adam for each tensor, scaled to the norm of its weights.

Sources: You et al., arXiv:1904.00962, algorithm 2; the documentation of mindspore.nn.Lamb, apex
FusedLAMB and timm.optim.Lamb. The decay is part of what is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..model.arrays import Floats
from .adam import Adam
from .history import History
from .rule import (
    CORRECTION,
    DECOUPLED,
    NO_DECAY,
    SCALE,
    UNCORRECTED,
    HyperparameterValues,
    UpdateTerms,
)

#: What an implementation limits: nothing, the norm of the weights, or the trust ratio.
UNLIMITED, NORM_LIMITED, RATIO_LIMITED = "unlimited", "weight norm at most 10", "ratio at most 1"
_LARGEST_NORM, _LARGEST_RATIO = 10.0, 1.0


@dataclass(frozen=True)
class Lamb:
    """u = m / sqrt(v) + decay w, as in Adam; w moves along u ||w|| / ||u||, tensor by tensor."""

    corrected: bool = True
    decay: str = NO_DECAY
    limit: str = UNLIMITED

    family = "LAMB"
    elementwise = False
    needs_matrix = False
    starts_from_zero = False
    needs_one_rate = False
    steps_to_identify = 1

    @property
    def name(self) -> str:
        """LAMB with all that is not the default."""
        parts = ["LAMB"]
        if not self.corrected:
            parts.append(UNCORRECTED)
        if self.decay != NO_DECAY:
            parts.append("decay")
        if self.limit != UNLIMITED:
            parts.append(self.limit)
        return ", ".join(parts)

    @property
    def aspects(self) -> Mapping[str, str]:
        """Bias correction, and what is limited."""
        correction = "with bias correction" if self.corrected else UNCORRECTED
        return {CORRECTION: correction, SCALE: f"trust ratio, {self.limit}"}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The decay is one of them, because it enters the norm and is not linear."""
        names = ("beta1", "beta2", "epsilon")
        return names if self.decay == NO_DECAY else (*names, "decay")

    @property
    def complexity(self) -> int:
        """Next to Adam, whose step it scales."""
        return 1 + (not self.corrected) + (self.decay != NO_DECAY) + (self.limit != UNLIMITED)

    @property
    def essence(self) -> Lamb:
        """A limit matters for large or small weights only."""
        return replace(self, limit=UNLIMITED)

    @property
    def without_decay(self) -> Lamb:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Lamb, ...]:
        """The rule without decay."""
        return (self.without_decay,) if self.decay != NO_DECAY else ()

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the step of Adam with the decay, times the trust ratio of the whole tensor."""
        steps = Adam(self.corrected).compute_terms(history, factors, values).direction
        weights = history.weights[:-1]
        if self.decay != NO_DECAY:
            steps = steps + values["decay"] * weights
        weight_norms = np.linalg.norm(weights, axis=1)
        if self.limit == NORM_LIMITED:
            weight_norms = np.minimum(weight_norms, _LARGEST_NORM)
        step_norms = np.linalg.norm(steps, axis=1)
        is_scaled = (weight_norms > 0) & (step_norms > 0)
        ratios = np.divide(weight_norms, step_norms, out=np.ones_like(step_norms), where=is_scaled)
        if self.limit == RATIO_LIMITED:
            ratios = np.minimum(ratios, _LARGEST_RATIO)
        return UpdateTerms(ratios[:, None] * steps, None)

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in float32; that of Adam."""
        return Adam(self.corrected).estimate_precision(values)


def list_variants() -> tuple[Lamb, ...]:
    """Return all variants."""
    choices = product(
        (True, False), (NO_DECAY, DECOUPLED), (UNLIMITED, NORM_LIMITED, RATIO_LIMITED)
    )
    return tuple(Lamb(*choice) for choice in choices)
