"""Adam and its variants: bias correction, kind of decay, and where epsilon is added.

Sources: Kingma and Ba, arXiv:1412.6980, algorithm 1 and the remark below it; Loshchilov and
Hutter, arXiv:1711.05101, algorithm 2; Reddi et al. 2018 (AMSGrad); Pagliardini et al.,
arXiv:2409.03137 (AdEMAMix); the documentation of torch.optim.Adam and AdamW, mindspore.nn.Adam and
AdamWeightDecay. docs/optimizer.md lists which
framework does what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF
from .adaptive import Adaptive
from .history import History
from .rule import (
    CORRECTION,
    DECAY_KIND,
    DECOUPLED,
    EPSILON_PLACE,
    L2,
    MOMENT_FORM,
    MOMENTUM_KIND,
    NO_DECAY,
    UNCORRECTED,
    HyperparameterValues,
    Rule,
    UpdateTerms,
)

#: Where epsilon is added: to the root of the corrected second moment, to the root before the
#: correction, or to the second moment under the root.
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
_DECAY_DESCRIPTIONS = {NO_DECAY: "", L2: ", L2 decay", DECOUPLED: ", decoupled decay"}
_UNNAMED_COMPLEXITY = 2  #: added to the complexity of a variant that no framework has

#: Rounding of an update in float32, in units of its unit roundoff: a few operations each round
#: once.
_ROUNDINGS = 16


@dataclass(frozen=True)
class Adam:
    """m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2; w moves along m / sqrt(v)."""

    corrected: bool = True
    decay: str = NO_DECAY
    epsilon: str = OUTSIDE
    keeps_largest: bool = False  #: divides by the largest second moment so far: AMSGrad
    adds_slow_mean: bool = False  #: adds a second, slow mean to the first moment: AdEMAMix

    family = "Adam"
    elementwise = True
    needs_matrix = False
    starts_from_zero = False
    needs_one_rate = False
    steps_to_identify = 1

    @property
    def name(self) -> str:
        """Name in a framework, else a description."""
        if self.keeps_largest:
            return f"AMSGrad ({replace(self, keeps_largest=False).name})"
        if self.adds_slow_mean:
            return f"AdEMAMix{_DECAY_DESCRIPTIONS[self.decay]}"
        name = _NAMES.get((self.corrected, self.decay, self.epsilon))
        if name is not None:
            return name
        description = f"Adam {'with' if self.corrected else 'without'} bias correction"
        description += _DECAY_DESCRIPTIONS[self.decay]
        if self.epsilon != OUTSIDE:
            description += f", epsilon {self.epsilon}"
        return description

    @property
    def aspects(self) -> Mapping[str, str]:
        """Bias correction, place of epsilon, kind of decay."""
        aspects = {
            CORRECTION: "with bias correction" if self.corrected else UNCORRECTED,
            EPSILON_PLACE: f"epsilon {self.epsilon}",
        }
        if self.decay != NO_DECAY:
            aspects[DECAY_KIND] = f"{self.decay} decay"
        if self.keeps_largest:
            aspects[MOMENT_FORM] = "the largest second moment (AMSGrad)"
        if self.adds_slow_mean:
            aspects[MOMENTUM_KIND] = "a second, slow mean (AdEMAMix)"
        return aspects

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """An L2 decay is one of them, because it enters the moments and is not linear."""
        names = ["beta1", "beta2", "epsilon"]
        if self.adds_slow_mean:
            names += ["slow_share", "beta3"]
        if self.decay == L2:
            names.append("decay")
        return tuple(names)

    @property
    def complexity(self) -> int:
        """A variant of a framework is simpler than one that no framework has."""
        complexity = (self.decay != NO_DECAY) + (self.epsilon != OUTSIDE)
        complexity += self.keeps_largest + self.adds_slow_mean
        if (self.corrected, self.decay, self.epsilon) not in _NAMES:
            complexity += _UNNAMED_COMPLEXITY
        return complexity

    @property
    def essence(self) -> Adam:
        """The place of epsilon matters for tiny gradients only, AMSGrad where they get smaller."""
        return replace(self, epsilon=OUTSIDE, keeps_largest=False)

    @property
    def without_decay(self) -> Adam:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Rule, ...]:
        """The rule without decay or slow mean, and RMSprop: no bias correction, no first moment."""
        reductions: list[Rule] = []
        if self.decay != NO_DECAY:
            reductions.append(self.without_decay)
        if self.adds_slow_mean:
            reductions.append(replace(self, adds_slow_mean=False))
        if not self.corrected and self.decay != DECOUPLED:
            reductions.append(Adaptive("RMSprop", self.decay))
        return tuple(reductions)

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return m_hat / (sqrt(v_hat) + epsilon), and the weights for a decoupled decay."""
        beta1, beta2, epsilon = values["beta1"], values["beta2"], values["epsilon"]
        zeros = np.zeros(history.gradients.shape[1])
        first = zeros if history.first_moment is None else history.first_moment
        second = zeros if history.second_moment is None else history.second_moment
        largest = second
        slow = zeros
        directions = np.empty_like(history.gradients)
        for index, recorded_gradient in enumerate(history.gradients):
            gradient = factors[index] * recorded_gradient
            if self.decay == L2:
                gradient = gradient + values["decay"] * history.weights[index]
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            largest = np.maximum(largest, second) if self.keeps_largest else second
            step = history.previous_steps + index + 1
            correction1, correction2 = 1.0, 1.0
            if self.corrected:
                correction1, correction2 = 1 - beta1**step, 1 - beta2**step
            mean = first / correction1
            if self.adds_slow_mean:
                slow = values["beta3"] * slow + values["slow_share"] * gradient
                mean = mean + slow
            directions[index] = self._divide_by_root(mean, largest, correction2, epsilon)
        return UpdateTerms(directions, history.weights[:-1] if self.decay == DECOUPLED else None)

    def _divide_by_root(
        self, mean: Floats, second: Floats, correction2: float, epsilon: float
    ) -> Floats:
        denominator: Floats
        if self.epsilon == INSIDE:
            denominator = np.sqrt(second / correction2 + epsilon)
        elif self.epsilon == EARLY:
            denominator = (np.sqrt(second) + epsilon) / np.sqrt(correction2)
        else:
            denominator = np.sqrt(second / correction2) + epsilon
        if epsilon > 0:
            quotient: Floats = mean / denominator
            return quotient
        direction: Floats = np.divide(
            mean, denominator, out=np.zeros_like(mean), where=denominator > 0
        )
        return direction

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in float32.

        A beta2 in float32 is rounded by half its spacing near one. This changes 1 - beta2, and
        the second moment, by a larger relative amount; likewise beta1.
        """
        u = UNIT_ROUNDOFF["float32"]
        return _ROUNDINGS * u + u / (1 - values["beta2"]) + u / (1 - values["beta1"])


def list_variants() -> tuple[Adam, ...]:
    """Return all variants. Without correction, epsilon has no place before the correction.

    AMSGrad is kept as torch.optim has it, and AdEMAMix as its paper: corrected, epsilon outside
    the root.
    """
    variants = []
    for corrected, decay, epsilon in product(
        (True, False), (NO_DECAY, DECOUPLED, L2), (OUTSIDE, EARLY, INSIDE)
    ):
        if corrected or epsilon != EARLY:
            variants.append(Adam(corrected, decay, epsilon))
    variants += [Adam(decay=decay, keeps_largest=True) for decay in (NO_DECAY, DECOUPLED, L2)]
    variants += [Adam(decay=decay, adds_slow_mean=True) for decay in (NO_DECAY, DECOUPLED)]
    return tuple(variants)
