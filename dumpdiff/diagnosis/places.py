"""The places where a mismatch may come from, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..model.verdict import Verdict
from .likelihoods import PLACES, Observation, Place

#: The cause of a mismatch: a place, or something that makes several places differ.
Cause = Literal[
    "settings",
    "data",
    "weights",
    "forward",
    "backward",
    "optimizer",
    "schedule",
    "precision",
    "long run",
]

PLACE_NAMES: Mapping[Place, str] = {
    "data": "the data",
    "weights": "the weights",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "schedule": "the learning rate",
    "optimizer": "the optimizer",
    "long run": "the long run",
}


@dataclass(frozen=True)
class PlaceAnswer:
    """What is known of one place."""

    place: Place
    verdict: Verdict | Literal["unseen"]  #: unseen: no stage examined it
    message: str = ""  #: what the verdict rests on, in one line
    evidence: tuple[str, ...] = ()
    stage: str = ""  #: the stage that says so
    share: float = 1.0  #: share of the place that was read, at most, by what gives the verdict


def answer_places(observations: Sequence[Observation]) -> dict[Place, PlaceAnswer]:
    """Return an answer for each place, in order.

    A difference counts most, then agreement, then an inconclusive answer. Other observations of
    the same verdict become its evidence.
    """
    answers = {}
    for place in PLACES:
        items = [item for item in observations if item.place == place]
        answers[place] = _merge_observations(place, items)
    return answers


def _merge_observations(place: Place, observations: Sequence[Observation]) -> PlaceAnswer:
    for verdict in ("differ", "agree", "inconclusive"):
        matching = [item for item in observations if item.verdict == verdict]
        if not matching:
            continue
        first = matching[0]
        lines = list(first.evidence)
        for item in matching[1:]:
            lines += [f"{item.stage}: {item.message}", *item.evidence]
        share = max(item.share for item in matching)
        return PlaceAnswer(place, first.verdict, first.message, tuple(lines), first.stage, share)
    return PlaceAnswer(place, "unseen")
