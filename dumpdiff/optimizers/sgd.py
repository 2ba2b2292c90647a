"""Stochastic gradient descent: plain, with momentum, dampened, Nesterov's.

Sources: the documentation of torch.optim.SGD, mindspore.nn.SGD and mindspore.nn.Momentum; Sutskever et al.,
http://proceedings.mlr.press/v28/sutskever13.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF
from .history import History
from .rule import DECAY_KIND, DECOUPLED, L2, MOMENTUM_KIND, NO_DECAY, UpdateTerms, HyperparameterValues

PLAIN, MOMENTUM, DAMPENED, NESTEROV = "plain", "momentum", "dampened momentum", "Nesterov momentum"


@dataclass(frozen=True)
class SGD:
    """b <- momentum b + (1 - dampening) g, and g itself at the first step; moves along b, Nesterov's g + momentum b."""

    kind: str = PLAIN
    decay: str = NO_DECAY

    family = "SGD"
    elementwise = True

    @property
    def name(self) -> str:
        """SGD with what it has."""
        parts = [self.kind] if self.kind != PLAIN else []
        parts += {NO_DECAY: [], L2: ["L2 decay"], DECOUPLED: ["decoupled decay"]}[self.decay]
        return "SGD" + (f" with {' and '.join(parts)}" if parts else "")

    @property
    def aspects(self) -> Mapping[str, str]:
        """Kind of momentum, kind of decay where both are."""
        told = (
            {}
            if self.decay == NO_DECAY or self.kind == PLAIN
            else {DECAY_KIND: f"{self.decay} decay"}
        )
        return {MOMENTUM_KIND: "no momentum" if self.kind == PLAIN else self.kind, **told}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """All is linear in the gradients, a decay too."""
        return {PLAIN: (), DAMPENED: ("momentum", "dampening")}.get(self.kind, ("momentum",))

    @property
    def complexity(self) -> int:
        """Decay apart from the momentum is in no framework's SGD."""
        return (PLAIN, MOMENTUM, NESTEROV, DAMPENED).index(self.kind) + {
            NO_DECAY: 0,
            L2: 1,
            DECOUPLED: 3,
        }[self.decay]

    @property
    def essence(self) -> SGD:
        """All of it."""
        return self

    @property
    def steps_to_identify(self) -> int:
        """The first step is along the gradient, whatever becomes of it later."""
        return 1 if self.kind == PLAIN else 2

    @property
    def without_decay(self) -> SGD:
        """The same without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[SGD, ...]:
        """Without decay; without what was done to the momentum; without momentum."""
        bare = () if self.decay == NO_DECAY else (self.without_decay,)
        plainer: tuple[SGD, ...] = {
            PLAIN: (),
            DAMPENED: (replace(self, kind=MOMENTUM),),
        }.get(self.kind, (SGD(decay=NO_DECAY if self.decay == NO_DECAY else L2),))
        return (*bare, *plainer)

    def compute_terms(self, history: History, factors: Floats, numbers: HyperparameterValues) -> UpdateTerms:
        """The momentum of the gradients, and that of the weights for an L2 decay: a sum's momentum is their sum."""
        start = None if self.kind == PLAIN else history.first_moment
        made = self._gathered(history.gradients * factors[:, None], numbers, start)
        if self.decay == L2:
            return UpdateTerms(
                made,
                self._gathered(history.weights[:-1], numbers, None if start is None else 0 * start),
            )
        return UpdateTerms(made, history.weights[:-1] if self.decay == DECOUPLED else None)

    def _gathered(self, added: Floats, numbers: HyperparameterValues, buffer: Floats | None) -> Floats:
        if self.kind == PLAIN:
            return added
        momentum = numbers["momentum"]
        kept = 1 - numbers["dampening"] if self.kind == DAMPENED else 1.0
        made = np.empty_like(added)
        for t, gradient in enumerate(added):
            buffer = gradient if buffer is None else momentum * buffer + kept * gradient
            made[t] = gradient + momentum * buffer if self.kind == NESTEROV else buffer
        return made

    def estimate_precision(self, numbers: HyperparameterValues) -> float:
        """A few roundings of float32."""
        return 16 * UNIT_ROUNDOFF["float32"]


def list_variants() -> tuple[SGD, ...]:
    """Every combination; without momentum a decay is the same in either place."""
    plain = (SGD(), SGD(decay=L2))
    return plain + tuple(
        SGD(k, d) for k in (MOMENTUM, NESTEROV, DAMPENED) for d in (NO_DECAY, L2, DECOUPLED)
    )
