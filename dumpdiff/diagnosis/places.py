"""Where a mismatch may come from, and what the stages say about each such place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..model.result import Finding
from ..model.stage import Stage, Verdict
from ..run_settings.comparison import Outcome
from ..run_settings.table import load_table
from .dump_stages import findings_of
from .evidence import Evidence
from .symptom import first_loss, first_norm, second_loss

#: In the order in which the precision guide looks: what comes first makes the rest differ too.
Place = Literal["data", "weights", "forward", "backward", "schedule", "optimizer", "long run"]

#: What in the end is to blame: a place, or what makes several of them differ.
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

#: Kinds of findings in a dump that tell of something before the forward pass.
_BEFORE: Mapping[str, Place] = {"input": "data", "parameter": "weights"}


@dataclass(frozen=True)
class Answer:
    """What is known of one place."""

    place: Place
    verdict: Verdict | Literal["unseen"]  #: unseen: no stage looked there
    said: str = ""  #: what the verdict rests on, most telling first line
    evidence: tuple[str, ...] = ()
    by: str = ""  #: the stage that says so


def answers(evidence: Evidence) -> dict[Place, Answer]:
    """All places in order, each answered by the first of its stages that can tell."""
    return {
        place: _first_sure(place, [ask(evidence) for ask in asked])
        for place, asked in _ASKED.items()
    }


def findings_at(evidence: Evidence, place: Place) -> list[Finding]:
    """The findings of the dumps that tell of one place, in order."""
    if evidence.dumps is None:
        return []
    if place == "backward":
        return findings_of(evidence.dumps, "backward")
    return [
        one
        for one in findings_of(evidence.dumps, "forward")
        if (_given(one, evidence) or "forward") == place
    ]


def rows_at(evidence: Evidence, *places: Place) -> list[Outcome]:
    """The settings that differ, matter, and show first at one of these places."""
    if evidence.settings is None:
        return []
    shows = load_table().shows
    parted = evidence.settings.having("different", "unsupported", matters=True)
    return [row for row in parted if shows(row.setting, row.section) in places]


def _first_sure(place: Place, said: list[Answer | None]) -> Answer:
    """A difference counts, whoever saw it; else the first that agrees; else what is unclear."""
    for verdict in ("differ", "agree", "unclear"):
        same = [answer for answer in said if answer is not None and answer.verdict == verdict]
        if same:
            others = tuple(
                line
                for answer in same[1:]
                for line in (f"{answer.by}: {answer.said}", *answer.evidence)
            )
            return replace(same[0], evidence=(*same[0].evidence, *others))
    return Answer(place, "unseen")


def _of_stage(place: Place, name: str) -> Callable[[Evidence], Answer | None]:
    def ask(evidence: Evidence) -> Answer | None:
        return _told(place, evidence.stage(name))

    return ask


def _told(place: Place, stage: Stage | None) -> Answer | None:
    if stage is None:
        return None
    return Answer(
        place, stage.verdict, stage.headline, (*stage.evidence, *stage.missing), stage.name
    )


def _before(place: Place) -> Callable[[Evidence], Answer | None]:
    """Tokens and weights of the dumps themselves: a finding that names them, or all of them agreeing."""

    def ask(evidence: Evidence) -> Answer | None:
        if evidence.dumps is None:
            return None
        found = findings_at(evidence, place)
        if found:
            return Answer(place, "differ", found[0].title, _titles(found), "forward")
        names = evidence.dumps.parameters
        if place == "weights" and names:
            return Answer(
                place, "agree", f"{len(names)} parameters in the dumps agree", (), "forward"
            )
        return None

    return ask


def _given(finding: Finding, evidence: Evidence) -> Place | None:
    """Where a finding stands that tells of what the forward pass was given.

    Constants that the model made, as the angles of a rotary embedding, belong to the forward pass. So does what cannot
    be told from a weight and differs although the weights are known to agree; so it is with the data.
    """
    place = _BEFORE.get(finding.kind)
    stage = evidence.stage(place) if place is not None else None
    return None if stage is not None and stage.verdict == "agree" else place


def _forward(evidence: Evidence) -> Answer | None:
    """The dumps' forward pass, without what is told of tokens and weights; those stand at their own places."""
    stage = evidence.stage("forward")
    if stage is None or evidence.dumps is None or stage.verdict != "differ":
        return _told("forward", stage)
    found = findings_at(evidence, "forward")
    if not found:
        return Answer(
            "forward", "unclear", "what differs in the forward pass follows from what it was given"
        )
    return Answer(
        "forward", "differ", found[0].title, (*_titles(found), *_causes(found)), "forward"
    )


def _first_loss(evidence: Evidence) -> Answer | None:
    """Equal losses speak for the forward pass; different ones may as well be the data's or the weights'."""
    told = first_loss(evidence.logs, evidence.settings) if evidence.logs is not None else None
    return (
        Answer("forward", "agree", told.said, (), "logs")
        if told is not None and told.verdict == "agree"
        else None
    )


def _first_norm(evidence: Evidence) -> Answer | None:
    told = first_norm(evidence.logs) if evidence.logs is not None else None
    if told is None or (told.verdict == "differ" and not _equal_losses(evidence)):
        return None
    return Answer("backward", told.verdict, told.said, (), "logs")


def _equal_losses(evidence: Evidence) -> bool:
    told = _first_loss(evidence)
    return told is not None and told.verdict == "agree"


def _second_loss(evidence: Evidence) -> Answer | None:
    """A second loss that agrees after a first update speaks for the optimizer."""
    told = second_loss(evidence.logs) if evidence.logs is not None else None
    return (
        Answer("optimizer", "agree", told.said, (), "logs")
        if told is not None and told.verdict == "agree"
        else None
    )


def _rate(evidence: Evidence) -> Answer | None:
    if evidence.logs is not None:
        for check in evidence.logs.checks:
            if check.name == "learning rate":
                return Answer("schedule", check.verdict, check.said, (), "logs")
    return None


def _rates_found(evidence: Evidence) -> Answer | None:
    """Learning rates that the optimizer's updates were solved for, if nothing else differs between the updates."""
    found = evidence.optimizer
    if (
        found is None
        or not found.differences
        or any(d.name != "learning-rate" for d in found.differences)
    ):
        return None
    return Answer("schedule", "differ", found.differences[0].text, (), "optimizer")


def _long_run(evidence: Evidence) -> Answer | None:
    if evidence.logs is None:
        return None
    if evidence.logs.begins == "later":
        stage = evidence.logs.stage()
        return Answer("long run", "differ", stage.headline, stage.evidence, "logs")
    verdict: Verdict = "agree" if evidence.logs.verdict == "agree" else "unclear"
    return Answer("long run", verdict, evidence.logs.stage().headline, (), "logs")


def _titles(found: list[Finding]) -> tuple[str, ...]:
    return tuple(finding.title for finding in found)


def _causes(found: list[Finding]) -> tuple[str, ...]:
    return tuple(
        f"why ({cause.name}): {cause.text}" for finding in found[:1] for cause in finding.causes[:1]
    )


_ASKED: Mapping[Place, tuple[Callable[[Evidence], Answer | None], ...]] = {
    "data": (_of_stage("data", "data"), _before("data")),
    "weights": (_of_stage("weights", "weights"), _before("weights")),
    "forward": (_forward, _first_loss),
    "backward": (_of_stage("backward", "backward"), _of_stage("backward", "norms"), _first_norm),
    "schedule": (_rate, _rates_found),
    "optimizer": (_of_stage("optimizer", "optimizer"), _second_loss),
    "long run": (_long_run,),
}
