"""The precision guide's tree: from what the stages found to where the mismatch comes from, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.verdict import Verdict
from ..run_settings import ComparedSetting
from .case import Case
from .dump_stages import select_phase_findings
from .evidence import Evidence
from .places import PlaceAnswer, Cause, Place, answer_places, select_settings
from .symptom import Symptom, find_symptom

#: Where to look for what the logs show, in order.
LEADS: Mapping[Symptom, tuple[Place, ...]] = {
    "first loss": ("data", "weights", "forward"),
    "gradients": ("backward",),
    "second loss": ("backward", "schedule", "optimizer"),
    "later": ("schedule", "long run"),
}

#: Whose settings make the first loss differ: they stand above data, weights and forward, which follow from them.
_STEP_1: tuple[Place, ...] = LEADS["first loss"]

_LOW_PRECISION = "low-precision"  #: the explanation of a finding


@dataclass(frozen=True)
class RuledOut:
    """A place where the mismatch does not come from."""

    place: Place
    by: str  #: the stage that says so
    said: str


@dataclass(frozen=True)
class Decision:
    """What a triage comes to."""

    verdict: Verdict  #: agree: no cause found, and all that was looked at agrees
    symptom: Symptom
    cause: Cause | None  #: None if nothing differs, or if the place cannot be told
    candidates: tuple[Place, ...]  #: what is left to look at, if a mismatch has no place yet
    headline: str
    evidence: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  #: what else differs, and may be another cause
    ruled_out: tuple[RuledOut, ...] = ()
    missing: tuple[str, ...] = ()  #: what was not looked at, or cannot be told

    @property
    def outcome(self) -> str:
        """The verdict in one word for programs: the cause, or differ, inconclusive, agree."""
        return self.cause or self.verdict


def decide(case: Case, evidence: Evidence) -> Decision:
    """The conclusion that the stages allow.

    The first place that differs, in the order data, weights, forward, backward, schedule, optimizer, long run, is where
    the mismatch comes from: those after it follow from it. Settings that show there are its cause, and so is a
    narrower dtype. Without a place that differs, what the logs show leaves candidates.
    """
    known = answer_places(evidence)
    symptom = _symptom(evidence, known)
    parted = [answer for answer in known.values() if answer.verdict == "differ"]
    settings = _telling(evidence, known)
    if parted and not (parted[0].place == "long run" and settings):
        return _located(evidence, known, symptom, parted, settings)
    if settings:
        return _by_settings(evidence, known, symptom, settings)
    if symptom in LEADS:
        return _narrowed(evidence, known, symptom)
    return _quiet(evidence, known, symptom)


def _symptom(evidence: Evidence, known: Mapping[Place, PlaceAnswer]) -> Symptom:
    """What the logs show, or what the first place that differs must show."""
    found = find_symptom(evidence.logs, evidence.settings)
    first = next((answer.place for answer in known.values() if answer.verdict == "differ"), None)
    if first in _STEP_1:
        return "first loss"
    if first == "backward" and found in ("second loss", "later", "none", "unknown"):
        return "gradients"
    if first in ("schedule", "optimizer") and found == "unknown":
        return "second loss"
    return found


def _telling(evidence: Evidence, known: Mapping[Place, PlaceAnswer]) -> list[ComparedSetting]:
    """Settings that differ and show before the optimizer, without those whose place is known to agree bit for bit."""
    given: tuple[Place, ...] = ("data", "weights")
    clean = select_settings(
        evidence, *(place for place in given if known[place].verdict == "agree")
    )
    return [row for row in select_settings(evidence, *_STEP_1, "backward") if row not in clean]


def _located(
    evidence: Evidence,
    known: Mapping[Place, PlaceAnswer],
    symptom: Symptom,
    parted: Sequence[PlaceAnswer],
    settings: Sequence[ComparedSetting],
) -> Decision:
    first = parted[0]
    places: tuple[Place, ...] = _STEP_1 if first.place in _STEP_1 else (first.place,)
    rows = [row for row in settings if row in select_settings(evidence, *places)]
    own = select_settings(evidence, first.place) if first.place in ("schedule", "optimizer") else []
    cause: Cause = first.place
    why = ""
    if rows:
        cause = "precision" if all(row.effect == "precision" for row in rows) else "settings"
    elif why := _low_precision(evidence, first.place):
        cause = "precision"
    said = rows[0].reason if rows else why or first.said
    shown = f"; it shows at {_NAMES[first.place]}: {first.said}" if rows else ""
    reasons = [row.reason for row in (*rows, *own)]
    further = (line for line in first.evidence if line != first.said)
    others = [f"{_NAMES[answer.place]}: {answer.said}" for answer in parted[1:]]
    return Decision(
        verdict="differ",
        symptom=symptom,
        cause=cause,
        candidates=(),
        headline=f"{_SAID[cause]}: {said}{shown}",
        evidence=tuple(dict.fromkeys((*reasons, f"{_by(first)}: {first.said}", *further))),
        also=tuple(others),
        ruled_out=_ruled_out(known, first.place),
        missing=_missing(evidence, known, first.place),
    )


def _by_settings(
    evidence: Evidence,
    known: Mapping[Place, PlaceAnswer],
    symptom: Symptom,
    rows: Sequence[ComparedSetting],
) -> Decision:
    """Settings differ, and no stage looked where they show, or none saw them there."""
    cause: Cause = "precision" if all(row.effect == "precision" for row in rows) else "settings"
    seen = "" if symptom in LEADS else "; nothing that was given shows what it does"
    return Decision(
        verdict="differ",
        symptom=symptom,
        cause=cause,
        candidates=(),
        headline=f"{_SAID[cause]}: {rows[0].reason}{seen}",
        evidence=tuple(row.reason for row in rows),
        ruled_out=_ruled_out(known, "long run"),
        missing=_missing(evidence, known, "long run"),
    )


def _narrowed(evidence: Evidence, known: Mapping[Place, PlaceAnswer], symptom: Symptom) -> Decision:
    """The logs differ and no stage says where: what is not ruled out is left."""
    left = tuple(place for place in LEADS[symptom] if known[place].verdict != "agree")
    cause: Cause | None = left[0] if len(left) == 1 else None
    where = (
        _NAMES[left[0]] if len(left) == 1 else "in " + " or ".join(_NAMES[place] for place in left)
    )
    if not left:
        where = "in something that no stage looks at: all its places were looked at and agree"
    stage = evidence.logs.to_stage() if evidence.logs is not None else None
    return Decision(
        verdict="differ",
        symptom=symptom,
        cause=cause,
        candidates=left,
        headline=f"{SYMPTOMS[symptom]}; the cause lies {where if len(left) != 1 else 'in ' + where}",
        evidence=(stage.headline, *stage.evidence) if stage is not None else (),
        ruled_out=tuple(_ruled(answer) for answer in known.values() if answer.verdict == "agree"),
        missing=_missing(evidence, known, LEADS[symptom][-1]),
    )


def _quiet(evidence: Evidence, known: Mapping[Place, PlaceAnswer], symptom: Symptom) -> Decision:
    """Nothing differs: agreement, if the forward pass was looked at and no stage is in doubt."""
    doubtful = [
        stage
        for stage in evidence.stages
        if stage.verdict == "inconclusive" and stage.name != "checklist"
    ]
    looked = known["forward"].verdict == "agree"
    verdict: Verdict = "agree" if looked and not doubtful else "inconclusive"
    agreeing = [_NAMES[answer.place] for answer in known.values() if answer.verdict == "agree"]
    said = (
        f"no cause found: {', '.join(agreeing) or 'nothing'} agree"
        if looked
        else "nothing differs in what was given"
    )
    if doubtful:
        said += f"; {doubtful[0].name} inconclusive: {doubtful[0].headline}"
    elif not looked:
        said += "; neither logs nor dumps show a forward pass of both runs"
    return Decision(
        verdict=verdict,
        symptom=symptom,
        cause=None,
        candidates=(),
        headline=said,
        ruled_out=_ruled_out(known, "long run"),
        missing=_missing(evidence, known, "long run"),
    )


def _low_precision(evidence: Evidence, place: Place) -> str:
    """How a narrower dtype explains what differs there, '' if it does not."""
    found = select_phase_findings(evidence.dumps, place) if evidence.dumps is not None else []
    if found and found[0].causes:
        cause = found[0].causes[0]
        return cause.text if cause.name == _LOW_PRECISION else ""
    if (
        place == "backward"
        and evidence.norms is not None
        and evidence.norms.pattern_kind == "precision"
    ):
        pattern = evidence.norms.patterns[0]
        return f"{pattern.summary}: {pattern.cause}"
    return ""


def _ruled_out(known: Mapping[Place, PlaceAnswer], before: Place) -> tuple[RuledOut, ...]:
    """The places that agree, up to ``before``."""
    order = list(known)
    return tuple(
        _ruled(known[place])
        for place in order[: order.index(before) + 1]
        if known[place].verdict == "agree"
    )


def _ruled(answer: PlaceAnswer) -> RuledOut:
    return RuledOut(answer.place, answer.by, answer.said)


def _missing(
    evidence: Evidence, known: Mapping[Place, PlaceAnswer], until: Place
) -> tuple[str, ...]:
    """Places up to ``until`` that nobody looked at, or that could not be told, and stages that had nothing to read."""
    order = list(known)
    lines = []
    for place in order[: order.index(until) + 1]:
        answer = known[place]
        if answer.verdict == "unseen":
            lines.append(f"{_NAMES[place]}: not looked at")
        elif answer.verdict == "inconclusive":
            lines.append(f"{_NAMES[place]}: {answer.said}")
    return (*lines, *(f"{name}: {why}" for name, why in evidence.skipped.items()))


def _by(answer: PlaceAnswer) -> str:
    return answer.by or answer.place


_NAMES: Mapping[Place, str] = {
    "data": "the data",
    "weights": "the weights",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "schedule": "the learning rate",
    "optimizer": "the optimizer",
    "long run": "the long run",
}

_SAID: Mapping[Cause, str] = {
    "settings": "the settings differ",
    "data": "the data differ",
    "weights": "the weights differ",
    "forward": "the forward pass differs",
    "backward": "the backward pass differs",
    "optimizer": "the optimizers differ",
    "schedule": "the learning rates differ",
    "precision": "the precisions differ",
    "long run": "the runs part later",
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
