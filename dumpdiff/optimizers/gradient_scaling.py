"""What was done to the recorded gradients before the rule saw them: one factor for each step.

Sources: torch.nn.utils.clip_grad_norm_ and Megatron-LM multiply by min(1, limit / (norm + 1e-6)), MindSpore's
ops.clip_by_global_norm by limit / max(norm, limit): the same but for a part in a million.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats
from .history import History
from .rule import HyperparameterValues

UNSCALED, GLOBAL_NORM, TENSOR_NORM, ONE_FACTOR, STEP_FACTORS = (
    "nothing",
    "global norm",
    "each tensor's norm",
    "one factor",
    "any factors",
)


@dataclass(frozen=True)
class GradientScaling:
    """One way to scale gradients; ``kind`` is one of the constants above."""

    kind: str = UNSCALED

    def list_hyperparameters(self, steps: int) -> tuple[str, ...]:
        """What it leaves open: a limit, a factor, or one factor a step relative to that of the first."""
        if self.kind in (GLOBAL_NORM, TENSOR_NORM):
            return ("clip",)
        if self.kind == ONE_FACTOR:
            return ("factor",)
        return tuple(name_factor(t) for t in range(1, steps)) if self.kind == STEP_FACTORS else ()

    def compute_factors(self, history: History, norms: Floats, numbers: HyperparameterValues) -> Floats:
        """(n,) factors; ``norms`` (n,) are L2 norms of all gradients of the model together."""
        if self.kind in (GLOBAL_NORM, TENSOR_NORM):
            norm = norms if self.kind == GLOBAL_NORM else history.norms
            shares = np.divide(numbers["clip"], norm, out=np.ones_like(norm), where=norm > 0)
            factors: Floats = np.minimum(1.0, shares)
            return factors
        if self.kind == ONE_FACTOR:
            return np.full(history.n_steps, numbers["factor"])
        if self.kind == STEP_FACTORS:
            return np.array([1.0, *(numbers[name_factor(t)] for t in range(1, history.n_steps))])
        return np.ones(history.n_steps)


def name_factor(step: int) -> str:
    """What the factor of a step, counted from 0, is called among the numbers."""
    return f"factor {step + 1}"
