"""What all observations together say about the places: a table of likelihoods, and their product.

Each observation of a triage is of one kind of :data:`LIKELIHOODS`. Its row says how likely it is if
nothing is wrong, and if the fault is at one place. Evidence is only ever multiplied: an observation
that a place explains cannot exclude it, so more evidence makes no right answer wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

import numpy as np

from ..model.arrays import Floats

#: In the order of the precision guide: a mismatch at one place makes those after it differ too.
Place = Literal["data", "weights", "forward", "backward", "schedule", "optimizer", "long run"]
PLACES: tuple[Place, ...] = get_args(Place)

#: Nothing is wrong, then one entry for each of :data:`PLACES`.
Row = tuple[float, float, float, float, float, float, float, float]

#: What is known before anything was compared: a triage is asked for because something is wrong, and
#: most reports of migrations end at the weights or in the forward pass.
PRIOR: Row = (0.30, 0.12, 0.13, 0.20, 0.08, 0.05, 0.08, 0.04)
#: Two faults at once are this many times as likely as the product of their priors: of two that are
#: made, one is mostly found before the runs are compared.
_PAIR_FACTOR = 0.1

#: How likely an observation is. Rows about agreement are for a place of which all was read.
#:
#: Integers and checksums do not differ by chance (1e-4), values judged against noise may (1e-3 to
#: 1e-2). A stage that compared everything overlooks one fault in fifty (0.02): one of another step,
#: or of a kind that its tolerance hides. A printed number is a sum over everything, so that it
#: hides more: a permuted batch, a wrong row of a weight and a small epsilon leave the first loss as
#: it is. Wrong data and weights make an operator seem wrong where a recorder left something out
#: (0.5, 0.3), but hardly one whose recomputed output matches the recorded one (explained).
LIKELIHOODS: Mapping[str, Row] = {
    # nothing wrong, data, weights, forward, backward, schedule, optimizer, long run
    "batches differ": (1e-4, 1, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4),
    "batches agree": (1, 0.02, 1, 1, 1, 1, 1, 1),
    "saved batches agree": (1, 0.05, 1, 1, 1, 1, 1, 1),  # but did the network read them?
    "recorded tokens differ": (1e-3, 1, 0.01, 0.02, 1e-3, 1e-3, 1e-3, 1e-3),
    "checkpoints differ": (1e-4, 1e-4, 1, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4),
    "checkpoints agree": (1, 1, 0.02, 1, 1, 1, 1, 1),
    "recorded weights differ": (1e-3, 0.01, 1, 0.02, 1e-3, 1e-3, 1e-3, 1e-3),
    "recorded weights agree": (1, 1, 0.02, 1, 1, 1, 1, 1),
    "forward values differ": (1e-3, 0.5, 0.3, 0.95, 1e-3, 1e-3, 1e-3, 1e-3),
    "explained forward values differ": (1e-5, 0.1, 0.05, 0.95, 1e-5, 1e-5, 1e-5, 1e-5),
    "forward values agree": (1, 0.05, 0.2, 0.02, 1, 1, 1, 1),
    "backward values differ": (1e-3, 0.3, 0.3, 0.3, 0.95, 1e-3, 1e-3, 1e-3),
    "explained backward values differ": (1e-5, 0.05, 0.05, 0.1, 0.95, 1e-5, 1e-5, 1e-5),
    "backward values agree": (1, 0.1, 0.2, 0.1, 0.02, 1, 1, 1),
    "recorded updates differ": (0.01, 0.2, 0.2, 0.2, 0.3, 0.5, 0.9, 0.01),
    "most norms differ": (1e-4, 0.9, 0.9, 0.9, 0.8, 1e-3, 1e-3, 1e-3),
    "few norms differ": (1e-4, 0.1, 0.1, 0.1, 0.9, 1e-3, 1e-3, 1e-3),
    "norms by a factor differ": (1e-4, 0.02, 0.05, 0.4, 0.9, 1e-3, 1e-3, 1e-3),
    "norms agree": (1, 0.2, 0.2, 0.15, 0.1, 1, 1, 1),
    # of the logs: the first that applies, if everything before it agrees
    "first loss differs": (1e-4, 0.9, 0.9, 0.9, 1e-3, 1e-3, 1e-3, 1e-3),
    "first gradients differ": (1e-4, 0.02, 0.02, 0.05, 0.9, 1e-3, 1e-3, 1e-3),
    "second loss differs": (1e-4, 0.1, 0.05, 0.05, 0.3, 0.9, 0.9, 0.2),
    "later losses jump": (3e-3, 0.02, 0.02, 0.02, 0.02, 0.1, 0.05, 0.95),
    "later losses drift": (1e-2, 0.03, 0.03, 0.05, 0.05, 0.3, 0.5, 0.9),
    # of the logs, if something before it is neither equal nor different
    "losses differ early": (1e-3, 0.9, 0.9, 0.9, 0.7, 0.7, 0.7, 0.2),
    "losses differ late": (1e-2, 0.3, 0.3, 0.4, 0.3, 0.5, 0.6, 0.9),
    # of the logs: how far they agree
    "first loss agrees": (1, 0.3, 0.3, 0.3, 1, 1, 1, 1),
    "first gradients agree": (1, 0.2, 0.2, 0.2, 0.3, 1, 1, 1),
    "second loss agrees": (1, 1, 1, 1, 0.5, 0.3, 0.4, 1),
    "all steps agree": (1, 0.02, 0.02, 0.01, 0.01, 0.01, 0.02, 0.01),
    "later losses agree": (1, 1, 1, 1, 1, 1, 1, 0.02),
    "rates differ": (1e-4, 2e-4, 2e-4, 2e-4, 2e-4, 1, 2e-4, 2e-4),
    "rates agree": (1, 1, 1, 1, 1, 0.02, 1, 1),
    "update rules differ": (1e-4, 2e-4, 2e-4, 2e-4, 2e-4, 2e-4, 1, 2e-4),
    "update rates differ": (1e-4, 2e-4, 2e-4, 2e-4, 2e-4, 1, 0.1, 2e-4),
    "update rules agree": (1, 1, 1, 1, 1, 0.3, 0.02, 1),
    # the same in half precision, whose rounding is as large as the effect of a small fault
    "forward values differ in half precision": (0.1, 0.5, 0.3, 0.95, 0.1, 0.1, 0.1, 0.1),
    "forward values agree in half precision": (1, 0.05, 0.2, 0.2, 1, 1, 1, 1),
    "backward values differ in half precision": (0.1, 0.3, 0.3, 0.3, 0.95, 0.1, 0.1, 0.1),
    "backward values agree in half precision": (1, 0.5, 0.5, 1, 0.2, 1, 1, 1),
    "norms differ in half precision": (0.4, 0.6, 0.6, 0.6, 0.9, 0.4, 0.4, 0.4),
    "norms agree in half precision": (1, 0.5, 0.5, 0.8, 0.8, 1, 1, 1),
    "first loss agrees in half precision": (1, 0.5, 0.5, 0.8, 1, 1, 1, 1),
    "first gradients agree in half precision": (1, 0.5, 0.5, 0.8, 0.8, 1, 1, 1),
    # a setting that acts at a place, which others seldom explain
    "data settings differ": (0.02, 0.5, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
    "weights settings differ": (0.02, 0.01, 0.5, 0.01, 0.01, 0.01, 0.01, 0.01),
    "forward settings differ": (0.02, 0.01, 0.01, 0.5, 0.01, 0.01, 0.01, 0.01),
    "backward settings differ": (0.02, 0.01, 0.01, 0.01, 0.5, 0.01, 0.01, 0.01),
    "schedule settings differ": (0.02, 0.01, 0.01, 0.01, 0.01, 0.5, 0.01, 0.01),
    "optimizer settings differ": (0.02, 0.01, 0.01, 0.01, 0.01, 0.01, 0.5, 0.01),
}

#: Kinds that look at the same few numbers of a step. Their agreement is counted once: the largest
#: number of several that agree says hardly more than one of them.
_SUMS = ("first loss agrees", "first gradients agree", "norms agree")


_IN_HALF_PRECISION = " in half precision"


def qualify_kind(kind: str, has_half_precision: bool) -> str:
    """Return the kind of an observation of runs in half precision, if that precision is known."""
    return kind + _IN_HALF_PRECISION if kind and has_half_precision else kind


@dataclass(frozen=True)
class Observation:
    """One thing that a stage observed."""

    kind: str  #: a key of :data:`LIKELIHOODS`; '' if it was undecided, which says nothing
    place: Place | None  #: what was looked at; None if it is about no place alone
    verdict: Literal["agree", "differ", "inconclusive"]
    message: str  #: what was observed, in one line
    stage: str  #: the stage that observed it
    evidence: tuple[str, ...] = ()
    #: Share of the place that was read: of its values, ranks or elements. Of an agreement, the rest
    #: is as likely wrong as before.
    share: float = 1.0

    @property
    def likelihoods(self) -> Floats:
        """How likely it is: nothing wrong, then one entry for each of :data:`PLACES`."""
        if not self.kind:
            return np.ones(1 + len(PLACES))
        row = np.array(LIKELIHOODS[self.kind], dtype=float)
        if self.verdict == "agree":
            return 1 - self.share * (1 - row)
        return row


@dataclass(frozen=True)
class Belief:
    """How probable it is that a place has a fault, after all observations."""

    nothing: float  #: that nothing is wrong
    places: Mapping[Place, float]  #: alone or together with another place

    def rank_places(self, least: float) -> tuple[Place, ...]:
        """Return the places that are at least as probable as that, the most probable first."""
        places = [place for place in PLACES if self.places[place] >= least]
        return tuple(sorted(places, key=lambda place: -self.places[place]))


def combine(observations: Sequence[Observation]) -> Belief:
    """Return what all observations together say.

    The hypotheses are: nothing is wrong, one place, two places. Two places explain a difference if
    either does, and an agreement if both do.
    """
    differing = [item.likelihoods for item in observations if item.verdict == "differ"]
    agreeing = list(_list_agreements(observations))
    numbers = range(1, 1 + len(PLACES))
    hypotheses: list[tuple[int, ...]] = [(0,), *((number,) for number in numbers)]
    hypotheses += combinations(numbers, 2)
    weights = np.array([_weigh(numbers, differing, agreeing) for numbers in hypotheses])
    weights /= weights.sum()
    places = {}
    for number, place in enumerate(PLACES, 1):
        has_place = np.array([number in numbers for numbers in hypotheses])
        places[place] = float(weights[has_place].sum())
    return Belief(float(weights[0]), places)


def _list_agreements(observations: Sequence[Observation]) -> Iterator[Floats]:
    """Yield the likelihoods of agreements; those of printed sums once, as the strongest of them."""
    sums = np.ones(1 + len(PLACES))
    for item in observations:
        if item.verdict != "agree":
            continue
        if item.kind.startswith(_SUMS):
            sums = np.minimum(sums, item.likelihoods)
        else:
            yield item.likelihoods
    yield sums


def _weigh(numbers: tuple[int, ...], differing: list[Floats], agreeing: list[Floats]) -> float:
    """Return the prior of a hypothesis times the likelihood of all observations."""
    chosen = list(numbers)
    weight = float(np.prod(np.array(PRIOR)[chosen]))
    if len(chosen) > 1:
        weight *= _PAIR_FACTOR
    for row in differing:
        weight *= float(1 - np.prod(1 - row[chosen]))
    for row in agreeing:
        weight *= float(np.prod(row[chosen]))
    return weight
