"""Adam in its kinds: bias correction or none, decay decoupled or in the gradient, epsilon in one of three places.

Sources: Kingma and Ba, arXiv:1412.6980, algorithm 1 and the remark below it; Loshchilov and Hutter, arXiv:1711.05101,
algorithm 2; the documentation of torch.optim.Adam and AdamW, mindspore.nn.Adam and AdamWeightDecay. docs/optimizer.md
lists which framework does what.
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
    CORRECTION,
    DECAY_KIND,
    DECOUPLED,
    EPSILON_PLACE,
    L2,
    NO_DECAY,
    UNCORRECTED,
    UpdateTerms,
    HyperparameterValues,
)

#: Where epsilon is added: to the root of the corrected second moment; to the root before that is corrected; under it.
OUTSIDE, EARLY, INSIDE = "outside the root", "before the correction", "inside the root"

_NAMES = {
    (True, NO_DECAY, OUTSIDE): "Adam",
    (True, L2, OUTSIDE): "Adam with L2 decay",
    (True, DECOUPLED, OUTSIDE): "AdamW",
    (True, NO_DECAY, EARLY): "MindSpore nn.Adam",
    (True, L2, EARLY): "MindSpore nn.Adam with L2 decay",
    (False, DECOUPLED, OUTSIDE): "MindSpore AdamWeightDecay",
    (False, NO_DECAY, OUTSIDE): "MindSpore AdamWeightDecay without decay",
}


@dataclass(frozen=True)
class Adam:
    """m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  moves along m / (sqrt(v) + epsilon)."""

    corrected: bool = True
    decay: str = NO_DECAY
    epsilon: str = OUTSIDE

    family = "Adam"
    elementwise = True
    steps_to_identify = 1

    @property
    def name(self) -> str:
        """As a framework calls it, or described."""
        described = f"Adam {'with' if self.corrected else 'without'} bias correction"
        described += {NO_DECAY: "", L2: ", L2 decay", DECOUPLED: ", decoupled decay"}[self.decay]
        described += "" if self.epsilon == OUTSIDE else f", epsilon {self.epsilon}"
        return _NAMES.get((self.corrected, self.decay, self.epsilon), described)

    @property
    def aspects(self) -> Mapping[str, str]:
        """Correction, place of epsilon, kind of decay."""
        decays = {} if self.decay == NO_DECAY else {DECAY_KIND: f"{self.decay} decay"}
        correction = "with bias correction" if self.corrected else UNCORRECTED
        return {CORRECTION: correction, EPSILON_PLACE: f"epsilon {self.epsilon}", **decays}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Decay inside the gradient bends the direction: it is no linear number."""
        return ("beta1", "beta2", "epsilon", *(("decay",) if self.decay == L2 else ()))

    @property
    def complexity(self) -> int:
        """A framework's own rule before one that none of them has."""
        known = (self.corrected, self.decay, self.epsilon) in _NAMES
        return (self.decay != NO_DECAY) + (self.epsilon != OUTSIDE) + (0 if known else 2)

    @property
    def essence(self) -> Adam:
        """Where epsilon is added shows in tiny gradients alone."""
        return replace(self, epsilon=OUTSIDE)

    @property
    def without_decay(self) -> Adam:
        """The same without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Adam, ...]:
        """Without decay."""
        return (self.without_decay,) if self.decay != NO_DECAY else ()

    def compute_terms(self, history: History, factors: Floats, numbers: HyperparameterValues) -> UpdateTerms:
        """m_hat / (sqrt(v_hat) + epsilon), and the weights for a decoupled decay."""
        beta1, beta2, epsilon = numbers["beta1"], numbers["beta2"], numbers["epsilon"]
        nothing = np.zeros(history.gradients.shape[1])
        first = nothing if history.first_moment is None else history.first_moment
        second = nothing if history.second_moment is None else history.second_moment
        made = np.empty_like(history.gradients)
        for t, recorded in enumerate(history.gradients):
            gradient = factors[t] * recorded
            if self.decay == L2:
                gradient = gradient + numbers["decay"] * history.weights[t]
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            made[t] = self._direction(first, second, beta1, beta2, epsilon, history.previous_steps + t + 1)
        return UpdateTerms(made, history.weights[:-1] if self.decay == DECOUPLED else None)

    def _direction(
        self, first: Floats, second: Floats, beta1: float, beta2: float, epsilon: float, t: int
    ) -> Floats:
        short1, short2 = (1 - beta1**t, 1 - beta2**t) if self.corrected else (1.0, 1.0)
        below: Floats
        if self.epsilon == INSIDE:
            below = np.sqrt(second / short2 + epsilon)
        elif self.epsilon == EARLY:
            below = (np.sqrt(second) + epsilon) / np.sqrt(short2)
        else:
            below = np.sqrt(second / short2) + epsilon
        direction: Floats = np.divide(
            first / short1, below, out=np.zeros_like(first), where=below > 0
        )
        return direction

    def estimate_precision(self, numbers: HyperparameterValues) -> float:
        """1 - beta2 of a beta2 in float32 is off by half its spacing near one; so is the second moment."""
        u = UNIT_ROUNDOFF["float32"]
        return 16 * u + u / (1 - numbers["beta2"]) + u / (1 - numbers["beta1"])


def list_variants() -> tuple[Adam, ...]:
    """Every combination; without correction epsilon has no 'before'."""
    choices = product((True, False), (NO_DECAY, DECOUPLED, L2), (OUTSIDE, EARLY, INSIDE))
    return tuple(Adam(*choice) for choice in choices if choice[0] or choice[2] != EARLY)
