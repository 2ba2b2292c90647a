"""Adafactor: a second moment of rows and columns, and steps relative to the size of the weights.

Sources: Shazeer and Stern, arXiv:1804.04235, algorithms 4 and 5; the documentation of
torch.optim.Adafactor, transformers.Adafactor and mindspore.nn.AdaFactor. docs/optimizer.md lists
which framework does what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF
from .history import History
from .rule import (
    DECAY_KIND,
    DECOUPLED,
    MOMENTUM_KIND,
    NO_DECAY,
    SCALE,
    HyperparameterValues,
    UpdateTerms,
)

#: Rounding of an update in float32, in units of its unit roundoff: means of rows and columns, and
#: three roots.
_ROUNDINGS = 64
_SMALLEST_MOMENT = 1e-30  #: avoids a division by zero


@dataclass(frozen=True)
class Adafactor:
    """w moves along g / sqrt(row mean x column mean of g^2), of a limited root mean square."""

    is_relative: bool = True  #: multiplied by the root mean square of the weights
    has_momentum: bool = False  #: a mean of the steps, and not of the gradients
    decay: str = NO_DECAY
    has_relative_decay: bool = False  #: the decay is multiplied by the size of the weights too

    family = "Adafactor"
    elementwise = False
    needs_matrix = False
    starts_from_zero = True
    needs_one_rate = False
    steps_to_identify = 2

    @property
    def name(self) -> str:
        """Adafactor with all that is not the default of torch.optim."""
        parts = ["Adafactor"]
        if not self.is_relative:
            parts.append("not scaled by the weights")
        if self.has_momentum:
            parts.append("first moment")
        if self.has_relative_decay:
            parts.append("decay scaled by the weights")
        elif self.decay != NO_DECAY:
            parts.append("decoupled decay")
        return ", ".join(parts)

    @property
    def aspects(self) -> Mapping[str, str]:
        """Scale, first moment and kind of decay."""
        aspects = {
            SCALE: f"steps {'' if self.is_relative else 'not '}scaled by the weights",
            MOMENTUM_KIND: "a mean of the steps" if self.has_momentum else "no first moment",
        }
        if self.decay != NO_DECAY:
            kind = "scaled" if self.has_relative_decay else "plain"
            aspects[DECAY_KIND] = f"{kind} decoupled decay"
        return aspects

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The exponent of the second moment, the limit, and those of the variant."""
        names = ["moment_exponent", "step_limit"]
        if self.is_relative:
            names.append("smallest_size")
        if self.has_momentum:
            names.append("beta1")
        return tuple(names)

    @property
    def complexity(self) -> int:
        """The size of the weights scales the steps by default."""
        return 1 + (not self.is_relative) + self.has_momentum + (self.decay != NO_DECAY)

    @property
    def essence(self) -> Adafactor:
        """The rule itself."""
        return self

    @property
    def without_decay(self) -> Adafactor:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY, has_relative_decay=False)

    @property
    def reductions(self) -> tuple[Adafactor, ...]:
        """The rule without decay, and without first moment."""
        reductions = []
        if self.decay != NO_DECAY:
            reductions.append(self.without_decay)
        if self.has_momentum:
            reductions.append(replace(self, has_momentum=False))
        return tuple(reductions)

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the steps of a full tensor, and the weights for a decay."""
        gradients = (factors[:, None] * history.gradients).reshape(-1, *history.shape)
        weights = history.weights[:-1]
        sizes = np.ones((len(weights), 1))
        if self.is_relative:
            root_mean_squares = np.sqrt(np.mean(weights**2, axis=1, keepdims=True))
            sizes = np.maximum(root_mean_squares, values["smallest_size"])
        steps = [
            _limit(step.reshape(-1), values["step_limit"])
            for step in _iterate_steps(gradients, values["moment_exponent"])
        ]
        directions = sizes * np.stack(steps)
        if self.has_momentum:
            directions = _average(directions, values["beta1"])
        if self.decay == NO_DECAY:
            return UpdateTerms(directions, None)
        return UpdateTerms(directions, sizes * weights if self.has_relative_decay else weights)

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in float32."""
        return _ROUNDINGS * UNIT_ROUNDOFF["float32"]


def _iterate_steps(gradients: Floats, exponent: float) -> Iterator[Floats]:
    """Yield the gradient of each step over the root of its second moment.

    The moment of a tensor of two or more dimensions is the outer product of its means over the
    last two. A new square counts t**-exponent at step t.
    """
    is_factored = gradients.ndim > 2
    moments: list[Floats] = []
    for step, gradient in enumerate(gradients, start=1):
        squares = gradient**2 + _SMALLEST_MOMENT
        new_moments = [squares]
        if is_factored:
            new_moments = [squares.mean(-1, keepdims=True), squares.mean(-2, keepdims=True)]
        share = float(step) ** -exponent
        if not moments:
            moments = new_moments
        moments = [
            (1 - share) * moment + share * new
            for moment, new in zip(moments, new_moments, strict=True)
        ]
        second_moment = moments[0]
        if is_factored:
            rows, columns = moments
            second_moment = rows / rows.mean(-2, keepdims=True) * columns
        yield gradient / np.sqrt(second_moment)


def _limit(step: Floats, limit: float) -> Floats:
    """Return a step with a root mean square of at most ``limit``."""
    root_mean_square = float(np.sqrt(np.mean(step**2)))
    return step / max(1.0, root_mean_square / limit)


def _average(steps: Floats, beta1: float) -> Floats:
    """Return the mean of the steps so far, of each step; it starts from zero."""
    means = np.empty_like(steps)
    mean = np.zeros(steps.shape[1])
    for index, step in enumerate(steps):
        mean = beta1 * mean + (1 - beta1) * step
        means[index] = mean
    return means


def list_variants() -> tuple[Adafactor, ...]:
    """Return those of the frameworks. torch.optim has no first moment."""
    plain, unscaled = Adafactor(), Adafactor(is_relative=False)
    scaled_decay = Adafactor(decay=DECOUPLED, has_relative_decay=True)
    decoupled, unscaled_decay = replace(plain, decay=DECOUPLED), replace(unscaled, decay=DECOUPLED)
    with_momentum = [
        replace(rule, has_momentum=True) for rule in (plain, unscaled, scaled_decay, unscaled_decay)
    ]
    return (plain, unscaled, decoupled, scaled_decay, unscaled_decay, *with_momentum)
