"""What a rule is: from gradients to the direction in which a weight moves, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..model.arrays import Floats
from .history import History

HyperparameterValues = Mapping[str, float]  #: the numbers of a rule by name: beta1, epsilon, ...

NO_DECAY, DECOUPLED, L2 = "none", "decoupled", "L2"

#: Names of aspects: what of a rule is said to be different.
CORRECTION, DECAY_KIND, EPSILON_PLACE = "bias-correction", "decay-kind", "epsilon-place"
MOMENTUM_KIND, SCALE = "momentum-kind", "scale"
UNCORRECTED = "without bias correction"


@dataclass(frozen=True)
class Hyperparameter:
    """A number that a rule leaves open: what it usually is, and how it is searched for."""

    name: str
    default: float  #: the default of PyTorch and MindSpore
    alternatives: tuple[float, ...]  #: other values in use
    lowest: float
    highest: float
    label: str  #: in words

    @property
    def search_scale(self) -> str:
        """How it is searched: a decay rate of a mean by its distance from one, others by their magnitude."""
        return "share" if self.highest < 1 else "magnitude"


#: The bounds keep a rule from turning into another: Adam with a huge epsilon is SGD with momentum.
BETA1 = Hyperparameter("beta1", 0.9, (0.95, 0.8, 0.5, 0.98), 0.0, 0.995, "beta1")
BETA2 = Hyperparameter("beta2", 0.999, (0.95, 0.98, 0.99, 0.9), 0.0, 0.9999, "beta2")
EPSILON = Hyperparameter(
    "epsilon", 1e-8, (1e-6, 1e-5, 1e-7, 1e-10, 1e-12, 1e-4, 1e-3), 1e-20, 0.1, "epsilon"
)
MOMENTUM = Hyperparameter("momentum", 0.9, (0.95, 0.99, 0.8, 0.5), 0.0, 0.999, "momentum")
DAMPENING = Hyperparameter("dampening", 0.0, (0.1, 0.5, 0.9), 0.0, 0.999, "dampening")
DECAY = Hyperparameter(
    "decay", 0.0, (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.3, 1e-5), 0.0, 10.0, "weight decay"
)
CLIP = Hyperparameter("clip", 1.0, (0.5, 0.1, 5.0, 10.0, 0.25, 2.0), 1e-12, 1e12, "norm limit")
HYPERPARAMETERS = {n.name: n for n in (BETA1, BETA2, EPSILON, MOMENTUM, DAMPENING, DECAY, CLIP)}


class UpdateTerms(NamedTuple):
    """w_after = w_before - rate (move + decay decayed), for each step; both (n, N)."""

    direction: Floats
    decayed: Floats | None  #: None where the decay does not enter linearly, or not at all


class Rule(Protocol):
    """One way to move weights; an immutable value, equal to another that says the same."""

    @property
    def name(self) -> str:
        """What the frameworks call it, or a description where none has it."""

    @property
    def family(self) -> str:
        """SGD, Adam or Muon."""

    @property
    def aspects(self) -> Mapping[str, str]:
        """What tells it from others of its family, in words; two rules are compared by these."""

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """What it leaves open, besides the learning rate and a decay that enters linearly."""

    @property
    def decay(self) -> str:
        """NO_DECAY, DECOUPLED (weight moved towards zero by itself) or L2 (added to the gradient)."""

    @property
    def elementwise(self) -> bool:
        """An element moves by its own gradients alone, so that a sample of elements suffices."""

    @property
    def complexity(self) -> int:
        """How many choices away from plain: of two that explain equally well the simpler is believed."""

    @property
    def essence(self) -> Rule:
        """The rule without what only matters in the last digits: two rules of one essence are the same rule."""

    @property
    def steps_to_identify(self) -> int:
        """In how many steps from zero moments it shows itself: a momentum in two."""

    @property
    def without_decay(self) -> Rule:
        """The same without its decay."""

    @property
    def reductions(self) -> tuple[Rule, ...]:
        """What this rule is when one of its numbers (decay, momentum, dampening) is zero; () if it is plain."""

    def compute_terms(self, history: History, factors: Floats, numbers: HyperparameterValues) -> UpdateTerms:
        """Direction of every step; ``factors`` (n,) multiply the recorded gradients first."""

    def estimate_precision(self, numbers: HyperparameterValues) -> float:
        """What a framework's float32 arithmetic may do to a move, relatively."""
