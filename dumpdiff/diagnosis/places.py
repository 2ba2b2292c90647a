"""The places where a mismatch may come from, and what the stages say about each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..model.finding import Finding
from ..model.stage import Stage
from ..model.verdict import Verdict
from ..run_settings.comparison import ComparedSetting
from ..run_settings.table import load_table
from .evidence import Evidence
from .stages import select_phase_findings
from .symptom import check_first_loss, check_first_norm, check_second_loss, find_check

#: In the order of the precision guide: a mismatch at one place makes those after it differ too.
Place = Literal["data", "weights", "forward", "backward", "schedule", "optimizer", "long run"]

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

#: Kinds of findings in a dump that belong to a place before the forward pass.
_PLACES_BEFORE_FORWARD: Mapping[str, Place] = {"input": "data", "parameter": "weights"}


@dataclass(frozen=True)
class PlaceAnswer:
    """What is known of one place."""

    place: Place
    verdict: Verdict | Literal["unseen"]  #: unseen: no stage examined it
    message: str = ""  #: what the verdict rests on, in one line
    evidence: tuple[str, ...] = ()
    stage: str = ""  #: the stage that says so


_Source = Callable[[Evidence], PlaceAnswer | None]


def answer_places(evidence: Evidence) -> dict[Place, PlaceAnswer]:
    """Return an answer for each place, in order."""
    answers: dict[Place, PlaceAnswer] = {}
    for place, sources in _SOURCES.items():
        place_answers = []
        for source in sources:
            answer = source(evidence)
            if answer is not None:
                place_answers.append(answer)
        answers[place] = _merge_answers(place, place_answers)
    return answers


def select_findings(evidence: Evidence, place: Place) -> list[Finding]:
    """Return the findings of the dumps that belong to a place, in order."""
    if evidence.dumps is None:
        return []
    if place == "backward":
        return select_phase_findings(evidence.dumps, "backward")
    forward_findings = select_phase_findings(evidence.dumps, "forward")
    return [finding for finding in forward_findings if _find_place(finding, evidence) == place]


def select_settings(evidence: Evidence, *places: Place) -> list[ComparedSetting]:
    """Return the settings that differ, matter, and show first at one of these places."""
    if evidence.settings is None:
        return []
    table = load_table()
    rows = evidence.settings.select_rows("differ", "unsupported", matters=True)
    return [row for row in rows if table.get_first_effect(row.setting, row.section) in places]


def _merge_answers(place: Place, answers: list[PlaceAnswer]) -> PlaceAnswer:
    """Return one answer: a difference counts most, then agreement, then an inconclusive answer.

    The other answers with the same verdict become its evidence.
    """
    for verdict in ("differ", "agree", "inconclusive"):
        matching_answers = [answer for answer in answers if answer.verdict == verdict]
        if not matching_answers:
            continue
        first = matching_answers[0]
        lines = list(first.evidence)
        for answer in matching_answers[1:]:
            lines += [f"{answer.stage}: {answer.message}", *answer.evidence]
        return replace(first, evidence=tuple(lines))
    return PlaceAnswer(place, "unseen")


def _read_stage(place: Place, name: str) -> _Source:
    """Return a source that answers with the stage of this name."""
    return lambda evidence: _convert_stage(place, evidence.find_stage(name))


def _convert_stage(place: Place, stage: Stage | None) -> PlaceAnswer | None:
    if stage is None:
        return None
    lines = (*stage.evidence, *stage.missing)
    return PlaceAnswer(place, stage.verdict, stage.headline, lines, stage.name)


def _read_dumps_before_forward(place: Place) -> _Source:
    """Return a source that answers with the tokens or weights in the dumps.

    They differ if a finding names them. Weights agree if the dumps have some and none differs.
    """

    def answer(evidence: Evidence) -> PlaceAnswer | None:
        if evidence.dumps is None:
            return None
        findings = select_findings(evidence, place)
        if findings:
            titles = _list_titles(findings)
            return PlaceAnswer(place, "differ", titles[0], titles, "forward")
        n_agreeing = evidence.dumps.n_agreeing_parameters
        if place == "weights" and n_agreeing:
            message = f"{n_agreeing} parameters in the dumps agree"
            return PlaceAnswer(place, "agree", message, (), "forward")
        return None

    return answer


def _find_place(finding: Finding, evidence: Evidence) -> Place:
    """Return the place of a finding in the forward pass: data, weights or forward.

    Constants that the model computes, as the angles of a rotary embedding, belong to the forward
    pass. So does a finding about a weight if the weights are known to agree: the value then only
    looks like a weight. The same holds for data.
    """
    place = _PLACES_BEFORE_FORWARD.get(finding.kind)
    if place is None:
        return "forward"
    stage = evidence.find_stage(place)
    return "forward" if stage is not None and stage.verdict == "agree" else place


def _read_forward(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with the forward pass of the dumps, without findings about tokens and weights."""
    stage = evidence.find_stage("forward")
    if stage is None or evidence.dumps is None or stage.verdict != "differ":
        return _convert_stage("forward", stage)
    findings = select_findings(evidence, "forward")
    if not findings:
        return PlaceAnswer(
            "forward", "inconclusive", "differences in the forward pass follow from its inputs"
        )
    lines = [*_list_titles(findings)]
    if findings[0].causes:
        cause = findings[0].causes[0]
        lines.append(f"why ({cause.name}): {cause.text}")
    return PlaceAnswer("forward", "differ", findings[0].title, tuple(lines), "forward")


def _read_updates_in_dumps(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with findings of the dumps about what follows the backward pass.

    Without one it is no answer: dumps seldom hold the whole update.
    """
    if evidence.dumps is None:
        return None
    findings = select_phase_findings(evidence.dumps, "optimizer")
    if not findings:
        return None
    titles = _list_titles(findings)
    return PlaceAnswer("optimizer", "differ", titles[0], titles, "dumps")


def _list_titles(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(finding.title for finding in findings)


def _read_first_loss(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with an equal first loss.

    A first loss that differs says nothing about the forward pass: data or weights may cause it.
    """
    if evidence.logs is None:
        return None
    check = check_first_loss(evidence.logs, evidence.settings)
    if check is None or check.verdict != "agree":
        return None
    return PlaceAnswer("forward", "agree", check.summary, (), "logs")


def _read_first_norm(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with the first global norm. If it differs, the first losses must be equal."""
    check = check_first_norm(evidence.logs) if evidence.logs is not None else None
    if check is None:
        return None
    if check.verdict == "differ" and _read_first_loss(evidence) is None:
        return None
    return PlaceAnswer("backward", check.verdict, check.summary, (), "logs")


def _read_second_loss(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with an equal second loss: it follows from the first update."""
    if evidence.logs is None:
        return None
    check = check_second_loss(evidence.logs)
    if check is None or check.verdict != "agree":
        return None
    return PlaceAnswer("optimizer", "agree", check.summary, (), "logs")


def _read_learning_rate(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with the learning rates in the logs."""
    check = find_check(evidence.logs, "learning rate") if evidence.logs is not None else None
    if check is None:
        return None
    return PlaceAnswer("schedule", check.verdict, check.summary, (), "logs")


def _read_solved_learning_rates(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with the learning rates of the updates, if nothing else differs between them."""
    if evidence.optimizer is None or not evidence.optimizer.differences:
        return None
    differences = evidence.optimizer.differences
    if any(difference.name != "learning-rate" for difference in differences):
        return None
    return PlaceAnswer("schedule", "differ", differences[0].summary, (), "optimizer")


def _read_long_run(evidence: Evidence) -> PlaceAnswer | None:
    """Answer with the logs: they differ if they begin to differ later than step 2."""
    if evidence.logs is None:
        return None
    stage = evidence.logs.to_stage()
    if evidence.logs.onset == "later":
        return PlaceAnswer("long run", "differ", stage.headline, stage.evidence, "logs")
    verdict: Verdict = "agree" if stage.verdict == "agree" else "inconclusive"
    return PlaceAnswer("long run", verdict, stage.headline, (), "logs")


#: Sources of each place. Of those with the same verdict the first counts.
_SOURCES: Mapping[Place, tuple[_Source, ...]] = {
    "data": (_read_stage("data", "data"), _read_dumps_before_forward("data")),
    "weights": (_read_stage("weights", "weights"), _read_dumps_before_forward("weights")),
    "forward": (_read_forward, _read_first_loss),
    "backward": (
        _read_stage("backward", "backward"),
        _read_stage("backward", "norms"),
        _read_first_norm,
    ),
    "schedule": (_read_learning_rate, _read_solved_learning_rates),
    "optimizer": (
        _read_stage("optimizer", "optimizer"),
        _read_updates_in_dumps,
        _read_second_loss,
    ),
    "long run": (_read_long_run,),
}
