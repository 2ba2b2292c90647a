"""The conclusion of a triage: from what the stages observed to the cause, or the places left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..model.verdict import Verdict
from ..run_settings import ComparedSetting
from .evidence import Evidence
from .likelihoods import PLACES, Belief, Observation, Place, combine
from .observations import list_observations, select_settings
from .places import PLACE_NAMES, Cause, PlaceAnswer, answer_places
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
_LOW_PRECISION = "low-precision"  #: name of the hypothesis that explains a finding

#: Stages whose doubts do not count once every place agrees: a setting that is not known acts at a
#: place, and items of the checklist are left to a person.
_ABOUT_NO_PLACE = ("settings", "checklist")
#: A place is a cause if it is at least this probable: nine to one against everything else. With
#: four to one, some selections of observations that one place explains well named another one.
DECIDED = 0.9
#: A place with less than this is not left. Everything that the stages overlook (one fault in fifty)
#: is below it, everything that only a printed sum speaks against is above it.
_LEFT = 0.05
#: While the cause is not decided, places with less than this are not listed.
POSSIBLE = 0.01
#: A place of which less was read is not ruled out, whatever else explains the difference.
_LEAST_SHARE = 0.5
#: With less than this, it is certain that something differs.
_NOTHING_WRONG = 0.05
#: From this probability on, a place that is left next to a cause may be a second one.
_SECOND_CAUSE = 0.25


@dataclass(frozen=True)
class RuledOut:
    """A place that is not the cause."""

    place: Place
    stage: str  #: the stage that says so
    summary: str  #: what it compared, and how much of it


@dataclass(frozen=True)
class Decision:
    """The conclusion of a triage."""

    verdict: Verdict  #: agree: no cause found, and nothing is left to look at
    symptom: Symptom
    cause: Cause | None  #: None if nothing differs, or if the place is not known
    #: Places that are left, the most probable first: next to a cause, those of a second one.
    candidates: tuple[Place, ...]
    headline: str
    stage: str = ""  #: the stage that shows the cause first, '' if nothing differs
    evidence: tuple[str, ...] = ()
    other_causes: tuple[Place, ...] = ()  #: places that are certainly wrong, too
    other_differences: tuple[str, ...] = ()  #: what else differs, and may follow from the cause
    ruled_out: tuple[RuledOut, ...] = ()
    missing: tuple[str, ...] = ()  #: what was not examined, or is inconclusive
    belief: Mapping[Place, float] = field(default_factory=dict)  #: place -> its probability

    @property
    def outcome(self) -> str:
        """One word for programs: the cause, else the verdict."""
        return self.cause or self.verdict


@dataclass(frozen=True)
class _Case:
    """Everything that a decision is made from."""

    evidence: Evidence
    observations: Sequence[Observation]
    belief: Belief
    answers: Mapping[Place, PlaceAnswer]
    symptom: Symptom

    def is_ruled_out(self, place: Place) -> bool:
        """Whether a stage examined the place, it agrees, and all evidence leaves no doubt."""
        answer = self.answers[place]
        is_read = answer.verdict == "agree" and answer.share >= _LEAST_SHARE
        return is_read and self.belief.places[place] < _LEFT


def decide(evidence: Evidence) -> Decision:
    """Return the conclusion from the results of the stages.

    Each observation of a stage makes places more or less probable. A place is the cause once it is
    far more probable than all others; two places are, if neither explains what was observed of the
    other. If settings that show there differ, or a dtype is narrower, that is the cause instead.
    Otherwise the places that are left are listed. Only a place that was examined, and agrees, is
    ruled out.
    """
    observations = list_observations(evidence)
    belief = combine(observations)
    answers = answer_places(
        [item for item in observations if item.stage != "settings" or item.verdict != "differ"]
    )
    differing = [item for item in observations if item.verdict == "differ"]
    is_shown = any(item.stage != "settings" for item in differing)
    causes: list[Place] = []
    if is_shown and belief.nothing < _NOTHING_WRONG:
        causes = [place for place in PLACES if belief.places[place] >= DECIDED]
    symptom = _find_symptom(evidence, causes[0] if causes else None)
    case = _Case(evidence, observations, belief, answers, symptom)
    if causes:
        return _decide_by_place(case, causes)
    if is_shown and belief.nothing < _NOTHING_WRONG:
        return _decide_by_symptom(case)
    settings = [
        setting
        for place in PLACES
        if not case.is_ruled_out(place)
        for setting in select_settings(evidence, place)
    ]
    if settings:
        return _decide_by_settings(case, settings)
    return _decide_without_difference(case)


def _find_symptom(evidence: Evidence, first_place: Place | None) -> Symptom:
    """Return the symptom in the logs, or the one that the place of the cause must show."""
    symptom = find_symptom(evidence.logs, evidence.settings)
    if first_place in _FIRST_LOSS_PLACES:
        return "first loss"
    if first_place == "backward" and symptom not in ("first loss", "gradients"):
        return "gradients"
    if first_place in ("schedule", "optimizer") and symptom == "unknown":
        return "second loss"
    return symptom


def _decide_by_place(case: _Case, causes: Sequence[Place]) -> Decision:
    """Decide if the place is known: it is the cause, unless settings or a dtype explain it."""
    first_place, *other_causes = causes
    places = _FIRST_LOSS_PLACES if first_place in _FIRST_LOSS_PLACES else (first_place,)
    settings: list[ComparedSetting] = []
    if first_place in (*_FIRST_LOSS_PLACES, "backward"):
        settings = [
            setting
            for place in places
            if not case.is_ruled_out(place)
            for setting in select_settings(case.evidence, place)
        ]
    cause: Cause = first_place
    reason, stage = _format_reason(case, first_place), _find_stage(case, first_place)
    if settings:
        cause, stage = _classify_settings(settings), "settings"
        reason = f"{settings[0].reason}; it shows at {PLACE_NAMES[first_place]}: {reason}"
    elif low_precision := _explain_by_precision(case.evidence, first_place):
        cause = "precision"
        reason = low_precision
    headline = f"{_CAUSE_HEADLINES[cause]}: {reason}"
    for place in other_causes:
        headline += f"; second cause: {_CAUSE_HEADLINES[place]}: {_format_reason(case, place)}"
    lines = [setting.reason for setting in settings]
    if first_place in ("schedule", "optimizer"):
        lines += [setting.reason for setting in select_settings(case.evidence, first_place)]
    for place in causes:
        lines += _list_reasons(case, place)
    return Decision(
        verdict="differ",
        symptom=case.symptom,
        cause=cause,
        candidates=tuple(
            place for place in case.belief.rank_places(_SECOND_CAUSE) if place not in causes
        ),
        headline=headline,
        stage=stage,
        evidence=tuple(dict.fromkeys(lines)),
        other_causes=tuple(other_causes),
        other_differences=tuple(_list_other_differences(case, causes)),
        ruled_out=_list_ruled_out(case),
        missing=_list_missing(case, first_place),
        belief=case.belief.places,
    )


def _format_reason(case: _Case, place: Place) -> str:
    """Return what shows that a place is wrong, in one line."""
    answer = case.answers[place]
    if answer.verdict == "differ":
        return answer.message
    reasons = [item.message for item in case.observations if _points_at(item, place)]
    return reasons[0] if reasons else "nothing else explains what differs"


def _find_stage(case: _Case, place: Place) -> str:
    """Return the stage that shows first that a place is wrong, '' if none does."""
    answer = case.answers[place]
    if answer.verdict == "differ":
        return answer.stage
    return next((item.stage for item in case.observations if _points_at(item, place)), "")


def _points_at(item: Observation, place: Place) -> bool:
    """Whether an observation is a difference that the place explains better than most."""
    if item.verdict != "differ":
        return False
    likelihoods = item.likelihoods[1:]
    return bool(likelihoods[PLACES.index(place)] >= likelihoods.max() / 2)


def _list_reasons(case: _Case, place: Place) -> Iterator[str]:
    """Yield everything that shows that a place is wrong."""
    answer = case.answers[place]
    if answer.verdict == "differ":
        yield f"{answer.stage or place}: {answer.message}"
        yield from (line for line in answer.evidence if line != answer.message)
    else:
        yield from (
            f"{item.stage}: {item.message}" for item in case.observations if _points_at(item, place)
        )


def _list_other_differences(case: _Case, causes: Sequence[Place]) -> Iterator[str]:
    """Yield the places that differ, too, and may follow from the causes."""
    for answer in case.answers.values():
        if answer.verdict == "differ" and answer.place not in causes:
            yield f"{PLACE_NAMES[answer.place]}: {answer.message}"


def _classify_settings(settings: Sequence[ComparedSetting]) -> Cause:
    is_precision = all(setting.effect == "precision" for setting in settings)
    return "precision" if is_precision else "settings"


def _decide_by_settings(case: _Case, settings: Sequence[ComparedSetting]) -> Decision:
    """Decide if settings differ, and no stage that examined their places found a difference."""
    cause = _classify_settings(settings)
    headline = f"{_CAUSE_HEADLINES[cause]}: {settings[0].reason}"
    if case.symptom not in LEADS:
        headline += "; nothing that was given shows its effect"
    return Decision(
        verdict="differ",
        symptom=case.symptom,
        cause=cause,
        candidates=(),
        headline=headline,
        stage="settings",
        evidence=tuple(setting.reason for setting in settings),
        ruled_out=_list_ruled_out(case),
        missing=_list_missing(case, PLACES[-1]),
        belief=case.belief.places,
    )


def _decide_by_symptom(case: _Case) -> Decision:
    """Decide if something differs, and several places explain it equally well."""
    candidates = case.belief.rank_places(POSSIBLE)
    first = next(item for item in case.observations if item.verdict == "differ")
    text, stage = first.message, first.stage
    if case.symptom in LEADS:
        text, stage = SYMPTOMS[case.symptom], "logs"
    where = " or ".join(PLACE_NAMES[place] for place in candidates)
    lines = [
        f"{item.stage}: {item.message}" for item in case.observations if item.verdict == "differ"
    ]
    return Decision(
        verdict="differ",
        symptom=case.symptom,
        cause=None,
        candidates=candidates,
        headline=f"{text}; the cause lies in {where}",
        stage=stage,
        evidence=tuple(dict.fromkeys(lines)),
        ruled_out=_list_ruled_out(case),
        missing=_list_missing(case, PLACES[-1]),
        belief=case.belief.places,
    )


def _decide_without_difference(case: _Case) -> Decision:
    """Decide if nothing differs.

    The runs agree if data, weights and forward pass were compared, or every number of long logs is
    equal, and no place is left.
    """
    undecided_stages = [
        stage
        for stage in case.evidence.stages
        if stage.verdict == "inconclusive" and stage.name not in _ABOUT_NO_PLACE
    ]
    agreeing = [place for place in PLACES if case.is_ruled_out(place)]
    candidates = tuple(
        place for place in case.belief.rank_places(0) if not case.is_ruled_out(place)
    )
    if any(item.kind == "all steps agree" for item in case.observations):
        candidates = tuple(place for place in candidates if case.belief.places[place] >= _LEFT)
    verdict: Verdict = "inconclusive"
    if not candidates and not undecided_stages:
        verdict = "agree"
    names = ", ".join(PLACE_NAMES[place] for place in agreeing)
    headline = f"no cause found: {names} agree" if agreeing else "nothing differs in what was given"
    doubts = [item.message for item in case.observations if item.verdict == "differ"]
    if doubts:
        headline += f"; what differs may be rounding: {doubts[0]}"
    if candidates:
        headline += f"; left: {', '.join(PLACE_NAMES[place] for place in candidates)}"
    if undecided_stages:
        stage = undecided_stages[0]
        headline += f"; {stage.name} inconclusive: {stage.headline}"
    return Decision(
        verdict=verdict,
        symptom=case.symptom,
        cause=None,
        candidates=candidates,
        headline=headline,
        ruled_out=_list_ruled_out(case),
        missing=_list_missing(case, PLACES[-1]),
        belief=case.belief.places,
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


def _list_ruled_out(case: _Case) -> tuple[RuledOut, ...]:
    """Return the places that were examined and agree."""
    return tuple(
        RuledOut(answer.place, answer.stage, answer.message)
        for answer in case.answers.values()
        if case.is_ruled_out(answer.place)
    )


def _list_missing(case: _Case, last: Place) -> tuple[str, ...]:
    """Return the places up to ``last`` without an answer, then the stages without input."""
    lines = []
    for place in PLACES[: PLACES.index(last) + 1]:
        answer = case.answers[place]
        if answer.verdict == "unseen":
            lines.append(f"{PLACE_NAMES[place]}: not looked at")
        elif answer.verdict == "inconclusive":
            lines.append(f"{PLACE_NAMES[place]}: {answer.message}")
        elif answer.verdict == "agree" and not case.is_ruled_out(place):
            lines.append(f"{PLACE_NAMES[place]}: agrees as far as it was read: {answer.message}")
    lines += [f"{name}: {reason}" for name, reason in case.evidence.skipped.items()]
    return tuple(lines)


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
