"""Rules next to Adam: NAdam, RAdam, Adamax, RMSprop, AdaGrad, Lion.

Sources: Dozat 2016 (NAdam); Liu et al., arXiv:1908.03265 (RAdam); Kingma and Ba, arXiv:1412.6980,
section 7.1 (Adamax); Tieleman and Hinton 2012 (RMSprop); Duchi et al. 2011 (AdaGrad); Chen et al.,
arXiv:2302.06675 (Lion). The details are those of torch.optim's documentation, and of
mindspore.nn.RMSProp and Adagrad where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    MOMENT_FORM,
    NO_DECAY,
    HyperparameterValues,
    Rule,
    UpdateTerms,
)
from .sgd import SGD

#: Rounding of an update in float32, in units of its unit roundoff: a few operations each round
#: once.
_ROUNDINGS = 16
#: Factor by which NAdam's momentum approaches beta1 in each step (torch.optim.NAdam).
_NADAM_BASE = 0.96
#: Degrees of freedom from which RAdam trusts the second moment (torch.optim.RAdam).
_RECTIFIED_FROM = 5.0


def _iterate_nadam(gradients: Floats, values: HyperparameterValues) -> Iterator[Floats]:
    beta1, beta2 = values["beta1"], values["beta2"]

    def compute_momentum(step: int) -> float:
        return float(beta1 * (1 - 0.5 * _NADAM_BASE ** (step * values["momentum_decay"])))

    first = second = np.zeros_like(gradients[0])
    momentum_product = 1.0
    for step, gradient in enumerate(gradients, start=1):
        momentum, next_momentum = compute_momentum(step), compute_momentum(step + 1)
        momentum_product *= momentum
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        direction = (1 - momentum) / (1 - momentum_product) * gradient
        direction = direction + next_momentum / (1 - momentum_product * next_momentum) * first
        yield _divide(direction, np.sqrt(second / (1 - beta2**step)) + values["epsilon"])


def _iterate_radam(gradients: Floats, values: HyperparameterValues) -> Iterator[Floats]:
    beta1, beta2 = values["beta1"], values["beta2"]
    most_freedom = 2 / (1 - beta2) - 1
    first = second = np.zeros_like(gradients[0])
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        correction2 = 1 - beta2**step
        freedom = most_freedom - 2 * step * beta2**step / correction2
        direction = first / (1 - beta1**step)
        if freedom > _RECTIFIED_FROM:
            share = (freedom - 4) * (freedom - 2) * most_freedom
            share /= (most_freedom - 4) * (most_freedom - 2) * freedom
            root = np.sqrt(second) + values["epsilon"]
            direction = np.sqrt(share * correction2) * _divide(direction, root)
        yield direction


def _iterate_adamax(gradients: Floats, values: HyperparameterValues) -> Iterator[Floats]:
    beta1, beta2 = values["beta1"], values["beta2"]
    first = largest = np.zeros_like(gradients[0])
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        largest = np.maximum(beta2 * largest, np.abs(gradient) + values["epsilon"])
        yield _divide(first / (1 - beta1**step), largest)


def _iterate_rmsprop(gradients: Floats, values: HyperparameterValues) -> Iterator[Floats]:
    second = np.zeros_like(gradients[0])
    for gradient in gradients:
        second = values["alpha"] * second + (1 - values["alpha"]) * gradient**2
        yield _divide(gradient, np.sqrt(second) + values["epsilon"])


def _iterate_adagrad(gradients: Floats, values: HyperparameterValues) -> Iterator[Floats]:
    total = np.full_like(gradients[0], values["accumulator"])
    for gradient in gradients:
        total = total + gradient**2
        yield _divide(gradient, np.sqrt(total) + values["epsilon"])


def _iterate_lion(gradients: Floats, values: HyperparameterValues) -> Iterator[Floats]:
    beta1, beta2 = values["beta1"], values["lion_beta2"]
    first = np.zeros_like(gradients[0])
    for gradient in gradients:
        yield np.sign(beta1 * first + (1 - beta1) * gradient)
        first = beta2 * first + (1 - beta2) * gradient


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    quotient: Floats = np.divide(
        numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0
    )
    return quotient


@dataclass(frozen=True)
class _Form:
    """How one rule makes directions of gradients, without decay."""

    iterate: Callable[[Floats, HyperparameterValues], Iterator[Floats]]
    hyperparameters: tuple[str, ...]
    decays: tuple[str, ...]  #: the kinds that a framework has
    steps: int  #: steps from zero moments until it differs from other rules
    is_sgd_first: bool = False  #: its first steps are SGD with a mean of gradients


_FORMS: Mapping[str, _Form] = {
    "NAdam": _Form(
        _iterate_nadam, ("beta1", "beta2", "epsilon", "momentum_decay"), (L2, DECOUPLED), 1
    ),
    "RAdam": _Form(_iterate_radam, ("beta1", "beta2", "epsilon"), (L2, DECOUPLED), 2, True),
    "Adamax": _Form(_iterate_adamax, ("beta1", "beta2", "epsilon"), (L2,), 2),
    "RMSprop": _Form(_iterate_rmsprop, ("alpha", "epsilon"), (L2,), 2),
    "AdaGrad": _Form(_iterate_adagrad, ("epsilon", "accumulator"), (L2,), 2),
    "Lion": _Form(_iterate_lion, ("beta1", "lion_beta2"), (DECOUPLED,), 2),
}


@dataclass(frozen=True)
class Adaptive:
    """A rule of :data:`_FORMS`, with or without a decay. It starts from zero moments."""

    form: str
    decay: str = NO_DECAY

    elementwise = True
    needs_matrix = False
    starts_from_zero = True

    @property
    def family(self) -> str:
        """The form: two of them are no variants of each other."""
        return self.form

    @property
    def name(self) -> str:
        """Name in the literature, and the decay."""
        if self.decay == NO_DECAY:
            return self.form
        return f"{self.form} with {'L2' if self.decay == L2 else 'decoupled'} decay"

    @property
    def aspects(self) -> Mapping[str, str]:
        """Form and kind of decay."""
        aspects = {MOMENT_FORM: self.form}
        if self.decay != NO_DECAY:
            aspects[DECAY_KIND] = f"{self.decay} decay"
        return aspects

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """An L2 decay is one of them, because it enters the moments and is not linear."""
        names = _FORMS[self.form].hyperparameters
        return (*names, "decay") if self.decay == L2 else names

    @property
    def complexity(self) -> int:
        """Of two equally good rules, Adam and SGD are likelier."""
        return 1 + (self.decay != NO_DECAY)

    @property
    def essence(self) -> Adaptive:
        """The rule itself."""
        return self

    @property
    def steps_to_identify(self) -> int:
        """Steps from zero moments until it differs from simpler rules."""
        return _FORMS[self.form].steps

    @property
    def needs_one_rate(self) -> bool:
        """With a learning rate per step, a mean of gradients is SGD with momentum."""
        return _FORMS[self.form].is_sgd_first

    @property
    def without_decay(self) -> Adaptive:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Rule, ...]:
        """The rule without decay, and SGD: a mean of gradients without a first moment."""
        reductions: list[Rule] = []
        if self.decay != NO_DECAY:
            reductions.append(self.without_decay)
        if _FORMS[self.form].is_sgd_first:
            reductions.append(SGD(decay=NO_DECAY if self.decay == NO_DECAY else L2))
        return tuple(reductions)

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the directions, and the weights for a decoupled decay."""
        gradients = factors[:, None] * history.gradients
        if self.decay == L2:
            gradients = gradients + values["decay"] * history.weights[:-1]
        directions = np.stack(list(_FORMS[self.form].iterate(gradients, values)))
        return UpdateTerms(directions, history.weights[:-1] if self.decay == DECOUPLED else None)

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in float32; see ``Adam``."""
        u = UNIT_ROUNDOFF["float32"]
        precision = _ROUNDINGS * u
        for name in ("beta1", "beta2", "lion_beta2", "alpha"):
            if name in _FORMS[self.form].hyperparameters:
                precision += u / (1 - values[name])
        return precision


def list_variants() -> tuple[Adaptive, ...]:
    """Return every form without decay, and with the kinds of decay that a framework has."""
    variants = []
    for name, decay in product(_FORMS, (NO_DECAY, L2, DECOUPLED)):
        if decay == NO_DECAY or decay in _FORMS[name].decays:
            variants.append(Adaptive(name, decay))
    return tuple(variants)
