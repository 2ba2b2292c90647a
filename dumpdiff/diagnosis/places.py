"""Where a mismatch may come from, and what the stages say about each such place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..model.finding import Finding
from ..model.stage import Stage
from ..model.verdict import Verdict
from ..run_settings.comparison import ComparedSetting
from ..run_settings.table import load_table
from .dump_stages import select_phase_findings
from .evidence import Evidence
from .symptom import check_first_loss, check_first_norm, check_second_loss

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
class PlaceAnswer:
    """What is known of one place."""

    place: Place
    verdict: Verdict | Literal["unseen"]  #: unseen: no stage looked there
    said: str = ""  #: what the verdict rests on, most telling first line
    evidence: tuple[str, ...] = ()
    by: str = ""  #: the stage that says so


def answer_places(evidence: Evidence) -> dict[Place, PlaceAnswer]:
    """All places in order, each answered by the first of its stages that can tell."""
    return {
        place: _first_sure(place, [ask(evidence) for ask in asked])
        for place, asked in _ASKED.items()
    }


def select_findings(evidence: Evidence, place: Place) -> list[Finding]:
    """The findings of the dumps that tell of one place, in order."""
    if evidence.dumps is None:
        return []
    if place == "backward":
        return select_phase_findings(evidence.dumps, "backward")
    return [
        one
        for one in select_phase_findings(evidence.dumps, "forward")
        if (_given(one, evidence) or "forward") == place
    ]


def select_settings(evidence: Evidence, *places: Place) -> list[ComparedSetting]:
    """The settings that differ, matter, and show first at one of these places."""
    if evidence.settings is None:
        return []
    shows = load_table().get_first_effect
    parted = evidence.settings.select_rows("differ", "unsupported", matters=True)
    return [row for row in parted if shows(row.setting, row.section) in places]


def _first_sure(place: Place, said: list[PlaceAnswer | None]) -> PlaceAnswer:
    """A difference counts, whoever saw it; else the first that agrees; else what is inconclusive."""
    for verdict in ("differ", "agree", "inconclusive"):
        same = [answer for answer in said if answer is not None and answer.verdict == verdict]
        if same:
            others = tuple(
                line
                for answer in same[1:]
                for line in (f"{answer.by}: {answer.said}", *answer.evidence)
            )
            return replace(same[0], evidence=(*same[0].evidence, *others))
    return PlaceAnswer(place, "unseen")


def _of_stage(place: Place, name: str) -> Callable[[Evidence], PlaceAnswer | None]:
    def ask(evidence: Evidence) -> PlaceAnswer | None:
        return _told(place, evidence.find_stage(name))

    return ask


def _told(place: Place, stage: Stage | None) -> PlaceAnswer | None:
    if stage is None:
        return None
    return PlaceAnswer(
        place, stage.verdict, stage.headline, (*stage.evidence, *stage.missing), stage.name
    )


def _before(place: Place) -> Callable[[Evidence], PlaceAnswer | None]:
    """Tokens and weights of the dumps themselves: a finding that names them, or all of them agreeing."""

    def ask(evidence: Evidence) -> PlaceAnswer | None:
        if evidence.dumps is None:
            return None
        found = select_findings(evidence, place)
        if found:
            return PlaceAnswer(place, "differ", found[0].title, _titles(found), "forward")
        names = evidence.dumps.parameters
        if place == "weights" and names:
            return PlaceAnswer(
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
    stage = evidence.find_stage(place) if place is not None else None
    return None if stage is not None and stage.verdict == "agree" else place


def _forward(evidence: Evidence) -> PlaceAnswer | None:
    """The dumps' forward pass, without what is told of tokens and weights; those stand at their own places."""
    stage = evidence.find_stage("forward")
    if stage is None or evidence.dumps is None or stage.verdict != "differ":
        return _told("forward", stage)
    found = select_findings(evidence, "forward")
    if not found:
        return PlaceAnswer(
            "forward",
            "inconclusive",
            "what differs in the forward pass follows from what it was given",
        )
    return PlaceAnswer(
        "forward", "differ", found[0].title, (*_titles(found), *_causes(found)), "forward"
    )


def _first_loss(evidence: Evidence) -> PlaceAnswer | None:
    """Equal losses speak for the forward pass; different ones may as well be the data's or the weights'."""
    told = check_first_loss(evidence.logs, evidence.settings) if evidence.logs is not None else None
    return (
        PlaceAnswer("forward", "agree", told.said, (), "logs")
        if told is not None and told.verdict == "agree"
        else None
    )


def _first_norm(evidence: Evidence) -> PlaceAnswer | None:
    told = check_first_norm(evidence.logs) if evidence.logs is not None else None
    if told is None or (told.verdict == "differ" and not _equal_losses(evidence)):
        return None
    return PlaceAnswer("backward", told.verdict, told.said, (), "logs")


def _equal_losses(evidence: Evidence) -> bool:
    told = _first_loss(evidence)
    return told is not None and told.verdict == "agree"


def _second_loss(evidence: Evidence) -> PlaceAnswer | None:
    """A second loss that agrees after a first update speaks for the optimizer."""
    told = check_second_loss(evidence.logs) if evidence.logs is not None else None
    return (
        PlaceAnswer("optimizer", "agree", told.said, (), "logs")
        if told is not None and told.verdict == "agree"
        else None
    )


def _rate(evidence: Evidence) -> PlaceAnswer | None:
    if evidence.logs is not None:
        for check in evidence.logs.checks:
            if check.name == "learning rate":
                return PlaceAnswer("schedule", check.verdict, check.said, (), "logs")
    return None


def _rates_found(evidence: Evidence) -> PlaceAnswer | None:
    """Learning rates that the optimizer's updates were solved for, if nothing else differs between the updates."""
    found = evidence.optimizer
    if (
        found is None
        or not found.differences
        or any(d.name != "learning-rate" for d in found.differences)
    ):
        return None
    return PlaceAnswer("schedule", "differ", found.differences[0].text, (), "optimizer")


def _long_run(evidence: Evidence) -> PlaceAnswer | None:
    if evidence.logs is None:
        return None
    if evidence.logs.onset == "later":
        stage = evidence.logs.to_stage()
        return PlaceAnswer("long run", "differ", stage.headline, stage.evidence, "logs")
    verdict: Verdict = "agree" if evidence.logs.verdict == "agree" else "inconclusive"
    return PlaceAnswer("long run", verdict, evidence.logs.to_stage().headline, (), "logs")


def _titles(found: list[Finding]) -> tuple[str, ...]:
    return tuple(finding.title for finding in found)


def _causes(found: list[Finding]) -> tuple[str, ...]:
    return tuple(
        f"why ({cause.name}): {cause.text}" for finding in found[:1] for cause in finding.causes[:1]
    )


_ASKED: Mapping[Place, tuple[Callable[[Evidence], PlaceAnswer | None], ...]] = {
    "data": (_of_stage("data", "data"), _before("data")),
    "weights": (_of_stage("weights", "weights"), _before("weights")),
    "forward": (_forward, _first_loss),
    "backward": (_of_stage("backward", "backward"), _of_stage("backward", "norms"), _first_norm),
    "schedule": (_rate, _rates_found),
    "optimizer": (_of_stage("optimizer", "optimizer"), _second_loss),
    "long run": (_long_run,),
}
