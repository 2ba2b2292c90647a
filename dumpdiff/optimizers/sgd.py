"""Stochastic gradient descent: plain, or with momentum, dampened momentum or Nesterov momentum.

Sources: the documentation of torch.optim.SGD, mindspore.nn.SGD and mindspore.nn.Momentum;
Sutskever et al., http://proceedings.mlr.press/v28/sutskever13.html.
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
    DECAY_KIND,
    DECOUPLED,
    L2,
    MOMENTUM_KIND,
    NO_DECAY,
    HyperparameterValues,
    UpdateTerms,
)

PLAIN, MOMENTUM, DAMPENED, NESTEROV = "plain", "momentum", "dampened momentum", "Nesterov momentum"

#: Kinds from simple to complex.
_KINDS_BY_COMPLEXITY = (PLAIN, MOMENTUM, NESTEROV, DAMPENED)
#: A decay that is not part of the momentum is in no framework's SGD, so it counts more.
_DECAY_COMPLEXITY = {NO_DECAY: 0, L2: 1, DECOUPLED: 3}

#: Rounding of an update in float32, in units of its unit roundoff: a few operations each round
#: once.
_ROUNDINGS = 16


@dataclass(frozen=True)
class SGD:
    """b <- momentum b + (1 - dampening) g, and g at the first step; w -= rate b.

    Nesterov's variant moves along g + momentum b.
    """

    kind: str = PLAIN
    decay: str = NO_DECAY

    family = "SGD"
    elementwise = True
    needs_matrix = False
    starts_from_zero = False
    needs_one_rate = False

    @property
    def name(self) -> str:
        """SGD with its momentum and decay."""
        features = []
        if self.kind != PLAIN:
            features.append(self.kind)
        if self.decay != NO_DECAY:
            features.append("L2 decay" if self.decay == L2 else "decoupled decay")
        return f"SGD with {' and '.join(features)}" if features else "SGD"

    @property
    def aspects(self) -> Mapping[str, str]:
        """Kind of momentum, and kind of decay if there is a momentum and a decay."""
        if self.kind == PLAIN:
            return {MOMENTUM_KIND: "no momentum"}
        aspects = {MOMENTUM_KIND: self.kind}
        if self.decay != NO_DECAY:
            aspects[DECAY_KIND] = f"{self.decay} decay"
        return aspects

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """A decay is none of them, because it is linear here."""
        if self.kind == PLAIN:
            return ()
        return ("momentum", "dampening") if self.kind == DAMPENED else ("momentum",)

    @property
    def complexity(self) -> int:
        """Kind of momentum, plus kind of decay."""
        return _KINDS_BY_COMPLEXITY.index(self.kind) + _DECAY_COMPLEXITY[self.decay]

    @property
    def essence(self) -> SGD:
        """The rule itself."""
        return self

    @property
    def steps_to_identify(self) -> int:
        """With any momentum, the first step is along the gradient."""
        return 1 if self.kind == PLAIN else 2

    @property
    def without_decay(self) -> SGD:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[SGD, ...]:
        """The rule without decay, and with the next simpler momentum."""
        reductions = []
        if self.decay != NO_DECAY:
            reductions.append(self.without_decay)
        if self.kind == DAMPENED:
            reductions.append(replace(self, kind=MOMENTUM))
        elif self.kind != PLAIN:
            reductions.append(SGD(decay=NO_DECAY if self.decay == NO_DECAY else L2))
        return tuple(reductions)

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the momentum of the gradients, and that of the weights for an L2 decay.

        The momentum of a sum is the sum of the momenta, so an L2 decay is linear.
        """
        buffer = None if self.kind == PLAIN else history.first_moment
        gradients = history.gradients * factors[:, None]
        directions = self._accumulate(gradients, values, buffer)
        if self.decay == L2:
            zero_buffer = None if buffer is None else 0 * buffer
            decayed = self._accumulate(history.weights[:-1], values, zero_buffer)
            return UpdateTerms(directions, decayed)
        return UpdateTerms(directions, history.weights[:-1] if self.decay == DECOUPLED else None)

    def _accumulate(
        self, gradients: Floats, values: HyperparameterValues, buffer: Floats | None
    ) -> Floats:
        if self.kind == PLAIN:
            return gradients
        momentum = values["momentum"]
        gradient_share = 1 - values["dampening"] if self.kind == DAMPENED else 1.0
        directions = np.empty_like(gradients)
        for step, gradient in enumerate(gradients):
            if buffer is not None:
                gradient_step = gradient_share * gradient
                buffer = momentum * buffer + gradient_step
            else:
                buffer = gradient
            directions[step] = buffer
            if self.kind == NESTEROV:
                directions[step] = gradient + momentum * buffer
        return directions

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in float32."""
        return _ROUNDINGS * UNIT_ROUNDOFF["float32"]


def list_variants() -> tuple[SGD, ...]:
    """Return all variants. Without momentum the two kinds of decay are the same."""
    choices = product((MOMENTUM, NESTEROV, DAMPENED), (NO_DECAY, L2, DECOUPLED))
    return (SGD(), SGD(decay=L2), *(SGD(*choice) for choice in choices))
