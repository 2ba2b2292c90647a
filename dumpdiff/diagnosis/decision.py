"""The decision tree of the precision guide: from the results of the stages to the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.verdict import Verdict
from ..run_settings import ComparedSetting
from .evidence import Evidence
from .places import Cause, Place, PlaceAnswer, answer_places, select_settings
from .stages import select_phase_findings
from .symptom import Symptom, find_symptom

#: Places that may cause a symptom, in order.
LEADS: Mapping[Symptom, tuple[Place, ...]] = {
    "first loss": ("data", "weights", "forward"),
    "gradients": ("backward",),
    "second loss": ("backward", "schedule", "optimizer"),
    "later": ("schedule", "long run"),
}

#: Places that make the first loss differ. A setting that shows there is the cause, the place is
#: not.
_FIRST_LOSS_PLACES: tuple[Place, ...] = LEADS["first loss"]

#: Last of all places.
_LAST_PLACE: Place = "long run"

_LOW_PRECISION = "low-precision"  #: name of the hypothesis that explains a finding


@dataclass(frozen=True)
class RuledOut:
    """A place that is not the cause."""

    place: Place
    stage: str  #: the stage that says so
    summary: str


@dataclass(frozen=True)
class Decision:
    """The conclusion of a triage."""

    verdict: Verdict  #: agree: no cause found, and all stages with input agree
    symptom: Symptom
    cause: Cause | None  #: None if nothing differs, or if the place is not known
    #: Remaining places, if the runs differ and the place is not known.
    candidates: tuple[Place, ...]
    headline: str
    evidence: tuple[str, ...] = ()
    other_differences: tuple[str, ...] = ()  #: what else differs, and may be another cause
    ruled_out: tuple[RuledOut, ...] = ()
    missing: tuple[str, ...] = ()  #: what was not examined, or is inconclusive

    @property
    def outcome(self) -> str:
        """One word for programs: the cause, else the verdict."""
        return self.cause or self.verdict


def decide(evidence: Evidence) -> Decision:
    """Return the conclusion from the results of the stages.

    The first place that differs, in the order data, weights, forward, backward, schedule,
    optimizer, long run, is the cause: differences at later places follow from it. If settings that
    show there differ, or a dtype is narrower, that is the cause instead. If no place differs, the
    symptom in the logs leaves candidates.
    """
    answers = answer_places(evidence)
    symptom = _find_symptom(evidence, answers)
    differing_answers = [answer for answer in answers.values() if answer.verdict == "differ"]
    settings = _select_early_settings(evidence, answers)
    if settings and [answer.place for answer in differing_answers] in ([], [_LAST_PLACE]):
        return _decide_by_settings(evidence, answers, symptom, settings)
    if differing_answers:
        return _decide_by_place(evidence, answers, symptom, settings)
    if symptom in LEADS:
        return _decide_by_symptom(evidence, answers, symptom)
    return _decide_without_difference(evidence, answers, symptom)


def _find_symptom(evidence: Evidence, answers: Mapping[Place, PlaceAnswer]) -> Symptom:
    """Return the symptom in the logs, or the one that the first differing place must cause."""
    symptom = find_symptom(evidence.logs, evidence.settings)
    first_place = None
    for answer in answers.values():
        if answer.verdict == "differ":
            first_place = answer.place
            break
    if first_place in _FIRST_LOSS_PLACES:
        return "first loss"
    if first_place == "backward" and symptom not in ("first loss", "gradients"):
        return "gradients"
    if first_place in ("schedule", "optimizer") and symptom == "unknown":
        return "second loss"
    return symptom


def _select_early_settings(
    evidence: Evidence, answers: Mapping[Place, PlaceAnswer]
) -> list[ComparedSetting]:
    """Return the settings that differ and show before the optimizer.

    A setting of data or weights, as a seed, does not matter if these are known to agree.
    """
    inputs: tuple[Place, ...] = ("data", "weights")
    agreeing_inputs = [place for place in inputs if answers[place].verdict == "agree"]
    harmless_settings = select_settings(evidence, *agreeing_inputs)
    early_settings = select_settings(evidence, *_FIRST_LOSS_PLACES, "backward")
    return [setting for setting in early_settings if setting not in harmless_settings]


def _decide_by_place(
    evidence: Evidence,
    answers: Mapping[Place, PlaceAnswer],
    symptom: Symptom,
    early_settings: Sequence[ComparedSetting],
) -> Decision:
    """Decide if a place differs: it is the cause, unless settings or a dtype explain it."""
    first, *later_answers = [answer for answer in answers.values() if answer.verdict == "differ"]
    places = _FIRST_LOSS_PLACES if first.place in _FIRST_LOSS_PLACES else (first.place,)
    place_settings = select_settings(evidence, *places)
    settings = [setting for setting in early_settings if setting in place_settings]
    cause: Cause = first.place
    reason = first.message
    if settings:
        cause = _classify_settings(settings)
        reason = f"{settings[0].reason}; it shows at {_PLACE_NAMES[first.place]}: {first.message}"
    elif low_precision := _explain_by_precision(evidence, first.place):
        cause = "precision"
        reason = low_precision
    lines = [setting.reason for setting in settings]
    if first.place in ("schedule", "optimizer"):
        lines += [setting.reason for setting in select_settings(evidence, first.place)]
    lines.append(f"{first.stage or first.place}: {first.message}")
    lines += [line for line in first.evidence if line != first.message]
    return Decision(
        verdict="differ",
        symptom=symptom,
        cause=cause,
        candidates=(),
        headline=f"{_CAUSE_HEADLINES[cause]}: {reason}",
        evidence=tuple(dict.fromkeys(lines)),
        other_differences=tuple(
            f"{_PLACE_NAMES[answer.place]}: {answer.message}" for answer in later_answers
        ),
        ruled_out=_list_ruled_out(answers, first.place),
        missing=_list_missing(evidence, answers, first.place),
    )


def _classify_settings(settings: Sequence[ComparedSetting]) -> Cause:
    is_precision = all(setting.effect == "precision" for setting in settings)
    return "precision" if is_precision else "settings"


def _decide_by_settings(
    evidence: Evidence,
    answers: Mapping[Place, PlaceAnswer],
    symptom: Symptom,
    settings: Sequence[ComparedSetting],
) -> Decision:
    """Decide if settings differ, and no stage that examined their places found a difference."""
    cause = _classify_settings(settings)
    headline = f"{_CAUSE_HEADLINES[cause]}: {settings[0].reason}"
    if symptom not in LEADS:
        headline += "; nothing that was given shows its effect"
    return Decision(
        verdict="differ",
        symptom=symptom,
        cause=cause,
        candidates=(),
        headline=headline,
        evidence=tuple(setting.reason for setting in settings),
        ruled_out=_list_ruled_out(answers, _LAST_PLACE),
        missing=_list_missing(evidence, answers, _LAST_PLACE),
    )


def _decide_by_symptom(
    evidence: Evidence, answers: Mapping[Place, PlaceAnswer], symptom: Symptom
) -> Decision:
    """Decide if the logs differ and no stage says where: the places that may cause it remain."""
    candidates = tuple(place for place in LEADS[symptom] if answers[place].verdict != "agree")
    cause: Cause | None = candidates[0] if len(candidates) == 1 else None
    if candidates:
        where = " or ".join(_PLACE_NAMES[place] for place in candidates)
    else:
        where = "something that no stage examines: all places that may cause it agree"
    lines: tuple[str, ...] = ()
    if evidence.logs is not None:
        stage = evidence.logs.to_stage()
        lines = (stage.headline, *stage.evidence)
    return Decision(
        verdict="differ",
        symptom=symptom,
        cause=cause,
        candidates=candidates,
        headline=f"{SYMPTOMS[symptom]}; the cause lies in {where}",
        evidence=lines,
        ruled_out=_list_ruled_out(answers, _LAST_PLACE),
        missing=_list_missing(evidence, answers, LEADS[symptom][-1]),
    )


def _decide_without_difference(
    evidence: Evidence, answers: Mapping[Place, PlaceAnswer], symptom: Symptom
) -> Decision:
    """Decide if nothing differs.

    The runs agree if the forward pass was examined and no stage is inconclusive. Items of the
    checklist that are left to a person do not count.
    """
    undecided_stages = [
        stage
        for stage in evidence.stages
        if stage.verdict == "inconclusive" and stage.name != "checklist"
    ]
    verdict: Verdict = "inconclusive"
    if answers["forward"].verdict == "agree":
        if not undecided_stages:
            verdict = "agree"
        agreeing = [
            _PLACE_NAMES[answer.place] for answer in answers.values() if answer.verdict == "agree"
        ]
        headline = f"no cause found: {', '.join(agreeing)} agree"
    else:
        headline = "nothing differs in what was given"
    if undecided_stages:
        stage = undecided_stages[0]
        headline += f"; {stage.name} inconclusive: {stage.headline}"
    elif verdict == "inconclusive":
        headline += "; neither logs nor dumps show a forward pass of both runs"
    return Decision(
        verdict=verdict,
        symptom=symptom,
        cause=None,
        candidates=(),
        headline=headline,
        ruled_out=_list_ruled_out(answers, _LAST_PLACE),
        missing=_list_missing(evidence, answers, _LAST_PLACE),
    )


def _explain_by_precision(evidence: Evidence, place: Place) -> str:
    """Return how a narrower dtype explains a difference, '' if it does not.

    The first finding of a dump decides, if it has causes; else the norms do.
    """
    findings = []
    if evidence.dumps is not None:
        findings = select_phase_findings(evidence.dumps, place)
    if findings and findings[0].causes:
        cause = findings[0].causes[0]
        return cause.text if cause.name == _LOW_PRECISION else ""
    if place != "backward" or evidence.norms is None:
        return ""
    if evidence.norms.pattern_kind != "precision":
        return ""
    pattern = evidence.norms.patterns[0]
    return f"{pattern.summary}: {pattern.cause}"


def _list_answers(answers: Mapping[Place, PlaceAnswer], last: Place) -> list[PlaceAnswer]:
    """Return the answers up to a place, which is included."""
    places = list(answers)
    return [answers[place] for place in places[: places.index(last) + 1]]


def _list_ruled_out(answers: Mapping[Place, PlaceAnswer], last: Place) -> tuple[RuledOut, ...]:
    """Return the places up to ``last`` that agree."""
    return tuple(
        RuledOut(answer.place, answer.stage, answer.message)
        for answer in _list_answers(answers, last)
        if answer.verdict == "agree"
    )


def _list_missing(
    evidence: Evidence, answers: Mapping[Place, PlaceAnswer], last: Place
) -> tuple[str, ...]:
    """Return the places up to ``last`` without an answer, then the stages without input."""
    lines = []
    for answer in _list_answers(answers, last):
        if answer.verdict == "unseen":
            lines.append(f"{_PLACE_NAMES[answer.place]}: not looked at")
        elif answer.verdict == "inconclusive":
            lines.append(f"{_PLACE_NAMES[answer.place]}: {answer.message}")
    lines += [f"{name}: {reason}" for name, reason in evidence.skipped.items()]
    return tuple(lines)


_PLACE_NAMES: Mapping[Place, str] = {
    "data": "the data",
    "weights": "the weights",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "schedule": "the learning rate",
    "optimizer": "the optimizer",
    "long run": "the long run",
}

_CAUSE_HEADLINES: Mapping[Cause, str] = {
    "settings": "the settings differ",
    "data": "the data differ",
    "weights": "the weights differ",
    "forward": "the forward pass differs",
    "backward": "the backward pass differs",
    "optimizer": "the optimizers differ",
    "schedule": "the learning rates differ",
    "precision": "the precisions differ",
    "long run": "the runs diverge later",
}

#: What the logs show, in words.
SYMPTOMS: Mapping[Symptom, str] = {
    "first loss": "the losses differ at step 1",
    "gradients": "the losses of step 1 agree, its gradients do not",
    "second loss": "step 1 agrees, the losses of step 2 do not",
    "later": "the first steps agree, later ones do not",
    "none": "the logs show no difference",
    "unknown": "no logs were compared",
}
