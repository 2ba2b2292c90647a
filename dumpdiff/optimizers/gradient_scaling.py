"""How the recorded gradients were scaled before the rule used them: one factor for each step.

Sources: torch.nn.utils.clip_grad_norm_ and Megatron-LM multiply by min(1, limit / (norm + 1e-6)),
MindSpore's ops.clip_by_global_norm by limit / max(norm, limit). The two differ by a part in a
million.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats
from .history import History
from .rule import HyperparameterValues

#: Kinds of scaling: none; clipped by the norm of all gradients, or of each tensor's; one factor
#: for all steps; one factor for each step.
UNSCALED = "none"
GLOBAL_NORM = "global norm"
TENSOR_NORM = "tensor norm"
ONE_FACTOR = "one factor"
STEP_FACTORS = "step factors"


@dataclass(frozen=True)
class GradientScaling:
    """One way to scale gradients; ``kind`` is one of the constants above."""

    kind: str = UNSCALED

    def list_hyperparameters(self, n_steps: int) -> tuple[str, ...]:
        """Return its unknowns: a limit, a factor, or factors of the steps relative to the first."""
        if self.kind in (GLOBAL_NORM, TENSOR_NORM):
            return ("clip",)
        if self.kind == ONE_FACTOR:
            return ("factor",)
        if self.kind == STEP_FACTORS:
            return tuple(name_factor(step) for step in range(1, n_steps))
        return ()

    def compute_factors(
        self, history: History, norms: Floats, values: HyperparameterValues
    ) -> Floats:
        """Return (n,) factors; ``norms`` (n,) are L2 norms of all gradients of the model."""
        if self.kind in (GLOBAL_NORM, TENSOR_NORM):
            norm = norms if self.kind == GLOBAL_NORM else history.norms
            ratios = np.divide(values["clip"], norm, out=np.ones_like(norm), where=norm > 0)
            factors: Floats = np.minimum(1.0, ratios)
            return factors
        if self.kind == ONE_FACTOR:
            return np.full(history.n_steps, values["factor"])
        if self.kind == STEP_FACTORS:
            later_factors = [values[name_factor(step)] for step in range(1, history.n_steps)]
            return np.array([1.0, *later_factors])
        return np.ones(history.n_steps)


def name_factor(step: int) -> str:
    """Return the hyperparameter name of the factor of a step, counted from 0."""
    return f"factor {step + 1}"
