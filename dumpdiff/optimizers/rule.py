"""The interface of an update rule: from gradients to the direction of a weight, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..model.arrays import Floats
from .history import History

HyperparameterValues = Mapping[str, float]  #: by name: beta1, epsilon, ...

NO_DECAY, DECOUPLED, L2 = "none", "decoupled", "L2"

#: Names of aspects. Differences between rules are reported by aspect.
CORRECTION, DECAY_KIND, EPSILON_PLACE = "bias-correction", "decay-kind", "epsilon-place"
MOMENTUM_KIND, MOMENT_FORM, SCALE = "momentum-kind", "moment-form", "scale"
UNCORRECTED = "without bias correction"


@dataclass(frozen=True)
class Hyperparameter:
    """An unknown number of a rule: its default, and how it is searched for."""

    name: str
    default: float  #: of PyTorch and MindSpore
    alternatives: tuple[float, ...]  #: other common values
    lowest: float
    highest: float
    label: str  #: in reports

    @property
    def search_scale(self) -> str:
        """``share`` for a decay rate of a mean, searched by its odds; else ``magnitude``."""
        return "share" if self.highest < 1 else "magnitude"


#: The bounds keep a rule from turning into another: Adam with a huge epsilon is SGD with momentum.
BETA1 = Hyperparameter("beta1", 0.9, (0.95, 0.8, 0.5, 0.98), 0.0, 0.995, "beta1")
BETA2 = Hyperparameter("beta2", 0.999, (0.95, 0.98, 0.99, 0.9), 0.0, 0.9999, "beta2")
EPSILON = Hyperparameter(
    "epsilon", 1e-8, (1e-6, 1e-5, 1e-7, 1e-10, 1e-12, 1e-4, 1e-3), 1e-20, 0.1, "epsilon"
)
ALPHA = Hyperparameter("alpha", 0.99, (0.9, 0.95, 0.999), 0.0, 0.9999, "alpha")
LION_BETA2 = Hyperparameter("lion_beta2", 0.99, (0.999, 0.98, 0.95, 0.9), 0.0, 0.9999, "beta2")
ACCUMULATOR = Hyperparameter(
    "accumulator", 0.0, (0.1, 1.0, 1e-3), 0.0, 100.0, "initial accumulator"
)
MOMENTUM_DECAY = Hyperparameter(
    "momentum_decay", 0.004, (0.0, 0.001, 0.01), 0.0, 1.0, "momentum decay"
)
#: A mean with a decay rate near one, which AdEMAMix adds. From a few steps only the share of a
#: gradient in it is known, alpha (1 - beta3), and not its factor alpha and its decay rate beta3.
SLOW_SHARE = Hyperparameter(
    "slow_share", 5e-4, (5e-3, 8e-4, 8e-3, 0.05), 1e-6, 0.1, "alpha times 1 - beta3"
)
BETA3 = Hyperparameter("beta3", 0.9999, (0.999, 0.9995, 0.99), 0.98, 0.99999, "beta3")
#: Of Adafactor: a new square counts t**-exponent at step t.
MOMENT_EXPONENT = Hyperparameter(
    "moment_exponent", 0.8, (0.5, 0.9, 0.7), 0.05, 3.0, "exponent of the second moment"
)
STEP_LIMIT = Hyperparameter("step_limit", 1.0, (0.5, 2.0, 0.1, 5.0), 0.01, 100.0, "step limit")
SMALLEST_SIZE = Hyperparameter(
    "smallest_size", 1e-3, (1e-2, 1e-4, 0.1), 1e-8, 1.0, "smallest size of a weight"
)
MOMENTUM = Hyperparameter("momentum", 0.9, (0.95, 0.99, 0.8, 0.5), 0.0, 0.999, "momentum")
DAMPENING = Hyperparameter("dampening", 0.0, (0.1, 0.5, 0.9), 0.0, 0.999, "dampening")
DECAY = Hyperparameter(
    "decay", 0.0, (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.3, 1e-5), 0.0, 10.0, "weight decay"
)
CLIP = Hyperparameter("clip", 1.0, (0.5, 0.1, 5.0, 10.0, 0.25, 2.0), 1e-12, 1e12, "norm limit")
_ALL = (
    BETA1, BETA2, EPSILON, ALPHA, LION_BETA2, ACCUMULATOR, MOMENTUM_DECAY, SLOW_SHARE, BETA3,
    MOMENT_EXPONENT, STEP_LIMIT, SMALLEST_SIZE, MOMENTUM, DAMPENING, DECAY, CLIP,
)  # fmt: skip
HYPERPARAMETERS = {hyperparameter.name: hyperparameter for hyperparameter in _ALL}


class UpdateTerms(NamedTuple):
    """w_after = w_before - rate (direction + decay decayed), for each step; both (n, N)."""

    direction: Floats
    decayed: Floats | None  #: None if there is no decay, or it does not enter linearly


class Rule(Protocol):
    """An update rule; an immutable value, equal to any other with the same fields."""

    @property
    def name(self) -> str:
        """Name in a framework, else a description."""

    @property
    def family(self) -> str:
        """SGD, Adam, Muon, or the rule itself."""

    @property
    def aspects(self) -> Mapping[str, str]:
        """Aspect -> description. Two rules of a family are compared by these."""

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of its unknowns, except the learning rate and a decay that enters linearly."""

    @property
    def decay(self) -> str:
        """NO_DECAY, DECOUPLED (the weight itself is reduced) or L2 (added to the gradient)."""

    @property
    def elementwise(self) -> bool:
        """Whether an element's update depends on its own gradients only. Then a sample suffices."""

    @property
    def needs_matrix(self) -> bool:
        """Whether it updates matrices only."""

    @property
    def starts_from_zero(self) -> bool:
        """Whether it reads no moments from before the first recorded step."""

    @property
    def needs_one_rate(self) -> bool:
        """Whether it is another rule if each step may have its own learning rate or factor."""

    @property
    def complexity(self) -> int:
        """Number of choices that are not plain.

        Of two equally good rules the simpler one is preferred.
        """

    @property
    def essence(self) -> Rule:
        """The rule without details that matter in the last digits only.

        Two rules with one essence are treated as the same rule.
        """

    @property
    def steps_to_identify(self) -> int:
        """Steps from zero moments until it differs from simpler rules; 2 for a momentum."""

    @property
    def without_decay(self) -> Rule:
        """The same rule without its decay."""

    @property
    def reductions(self) -> tuple[Rule, ...]:
        """The rules that this one is if decay, momentum or dampening is zero; () if it is plain."""

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the direction of every step; ``factors`` (n,) multiply the recorded gradients."""

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in a framework's arithmetic."""
