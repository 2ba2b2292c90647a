"""What the logs observed: where they first differ, and how far they agree."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.verdict import Verdict
from ..training_logs.comparison import align_rates
from ..training_logs.migration_standard import Check
from .evidence import Evidence
from .likelihoods import Observation, qualify_kind
from .symptom import (
    agrees_to_rounding,
    check_first_loss,
    check_first_norm,
    check_second_loss,
    departs_at_once,
    find_check,
    find_symptom,
)

#: What is read of a schedule if the first rate is not printed: half of the wrong schedules differ
#: in the warmup, and the first rate alone may show it.
_SHARE_WITHOUT_FIRST_RATE = 0.5


def observe_logs(evidence: Evidence) -> Iterator[Observation]:
    """Yield what the logs observed, in the order of the precision guide.

    Only the first difference counts, since everything after it follows. The learning rate follows
    from nothing.
    """
    if evidence.logs is None:
        return
    yield from _observe_rates(evidence)
    if agrees_to_rounding(evidence.logs, evidence.settings):
        message = f"every printed number of {len(evidence.logs.steps)} steps is equal to rounding"
        yield Observation("all steps agree", "long run", "agree", message, "logs")
        return
    yield from _observe_first_step(evidence)
    yield from _observe_later_steps(evidence)


def _observe_rates(evidence: Evidence) -> Iterator[Observation]:
    """Observe the learning rates. A rate of step 1 that is not printed may be another one."""
    assert evidence.logs is not None
    check = find_check(evidence.logs, "learning rate")
    if check is None or check.verdict == "inconclusive":
        return
    message, share = check.summary, 1.0
    steps = align_rates(evidence.logs.target, evidence.logs.reference)[0]
    if check.verdict == "agree" and int(steps[0]) != 1:
        message += f"; that of step 1 is not printed, the first one is that of step {steps[0]}"
        share = _SHARE_WITHOUT_FIRST_RATE
    kind = f"rates {check.verdict}"
    yield Observation(kind, "schedule", check.verdict, message, "logs", (), share)


def _observe_first_step(evidence: Evidence) -> Iterator[Observation]:
    """Observe the loss and the gradient norm of step 1."""
    assert evidence.logs is not None
    loss = check_first_loss(evidence.logs, evidence.settings)
    norm = check_first_norm(evidence.logs, evidence.settings)
    if loss is None:
        return
    if loss.verdict == "differ":
        yield Observation("first loss differs", None, "differ", loss.summary, "logs")
        return
    if loss.verdict == "inconclusive":
        yield Observation("", "forward", "inconclusive", loss.summary, "logs")
        if norm is not None and norm.verdict == "differ":
            yield Observation("most norms differ", None, "differ", norm.summary, "logs")
        return
    kind = qualify_kind("first loss agrees", evidence.has_half_precision)
    yield Observation(kind, "forward", "agree", loss.summary, "logs")
    if norm is None:
        return
    if norm.verdict == "differ":
        yield Observation("first gradients differ", "backward", "differ", norm.summary, "logs")
    elif norm.verdict == "agree":
        kind = qualify_kind("first gradients agree", evidence.has_half_precision)
        yield Observation(kind, "backward", "agree", norm.summary, "logs")
    else:
        yield Observation("", "backward", "inconclusive", norm.summary, "logs")


def _observe_later_steps(evidence: Evidence) -> Iterator[Observation]:
    """Observe the second loss and those after it, unless step 1 differs already."""
    assert evidence.logs is not None
    symptom = find_symptom(evidence.logs, evidence.settings)
    if symptom in ("first loss", "gradients"):
        return
    loss = check_first_loss(evidence.logs, evidence.settings)
    second = check_second_loss(evidence.logs, evidence.settings)
    starts_equal = _get_verdict(loss) == "agree"
    stage = evidence.logs.to_stage()
    if symptom == "second loss":
        assert second is not None
        kind = "second loss differs" if starts_equal else "losses differ early"
        yield Observation(kind, None, "differ", second.summary, "logs")
        return
    if second is not None and second.verdict == "agree" and starts_equal:
        yield Observation("second loss agrees", "optimizer", "agree", second.summary, "logs")
    if evidence.logs.onset == "later":
        kind = "losses differ late"
        if starts_equal:
            is_jump = departs_at_once(evidence.logs)
            kind = "later losses jump" if is_jump else "later losses drift"
        yield Observation(kind, "long run", "differ", stage.headline, "logs", stage.evidence)
    elif stage.verdict == "agree":
        yield Observation("later losses agree", "long run", "agree", stage.headline, "logs")
    else:
        yield Observation("", "long run", "inconclusive", stage.headline, "logs")


def _get_verdict(check: Check | None) -> Verdict:
    return "inconclusive" if check is None else check.verdict
