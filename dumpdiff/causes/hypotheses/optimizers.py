"""One step of Adam or SGD, from the weight before, its gradient, and the weight after; the moments were zero before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ...model.arrays import Floats
from ...model.trace import OPTIMIZER
from ..parameter_fit import fit_factor, minimize
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase

_NO_DECAY = 1e-7  #: what a weight keeps is 1 to the precision of float32
_BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Rule:
    """AdamW, Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, in its first step."""

    learning_rate: float
    eps: float = 1e-8
    decay: float = 0.0
    corrected: bool = True

    def step(self, weight: Floats, gradient: Floats) -> Floats:
        """The weight after: moments (1 - beta1) g and (1 - beta2) g^2, each divided by the same if corrected."""
        first, second = (1.0, 1.0) if self.corrected else (1 - _BETAS[0], 1 - _BETAS[1])
        moved = first * gradient / (np.sqrt(second) * np.abs(gradient) + self.eps)
        after: Floats = weight - self.learning_rate * (moved + self.decay * weight)
        return after


def adam(s: FaultCase) -> Iterator[Candidate]:
    """The rule that made the faithful side's weight, and what else a rule with one change would make."""
    if s.phase != OPTIMIZER or s.faithful.size < 2:
        return
    inputs = [o.array.reshape(s.faithful.shape) for o in s.find_same_size_operands()][:8]
    for weight, gradient in permutations(inputs, 2):
        theirs = fitted(weight, gradient, s.faithful)
        if theirs is None:
            continue
        plain = theirs.step(weight, gradient)
        for cause, ours in changes(theirs, weight, gradient, s.faulty):
            made = ours.step(weight, gradient)
            # The step is small beside the weight: judge the update, not the weight.
            if np.linalg.norm(made - s.faulty) <= 0.02 * np.linalg.norm(s.faulty - s.faithful):
                yield Candidate(
                    made,
                    _said(cause, ours),
                    _said(cause, theirs, "has "),
                    _figures(ours),
                    plain,
                    cause,
                )
        return


def decayed(s: FaultCase) -> Iterator[Candidate]:
    """A weight times 1 - rate x decay: none of it on one side, or of another rate."""
    kept = [number for number in s.numbers if 0.5 < number < 1]
    if s.phase != OPTIMIZER or s.faithful.size < 2 or len(kept) > 1:
        return
    for o in s.find_same_size_operands():
        weight = o.array.reshape(s.faithful.shape)
        theirs, ours = (fit_factor(weight, v) for v in (s.faithful, s.faulty))
        if 0.5 < theirs <= 1 + 1e-7 and 0.5 < ours <= 1 + 1e-7:
            cause = "weight-decay" if max(theirs, ours) > 1 - _NO_DECAY else "learning-rate"
            said, other = (f"a weight that keeps {value:.7g} of itself" for value in (ours, theirs))
            figures = {"decay": 1 - ours}
            yield Candidate(ours * weight, said, f"has {other}", figures, theirs * weight, cause)


def fitted(weight: Floats, gradient: Floats, after: Floats) -> Rule | None:
    """A rule that explains an update to one per cent; None if none does."""
    update = weight - after
    size = float(np.linalg.norm(update))
    if size == 0 or not np.any(gradient):
        return None
    for corrected in (True, False):
        for decayed in (False, True):
            rule = _solved(weight, gradient, update, 1e-8, corrected, decayed)
            if rule and np.linalg.norm(rule.step(weight, gradient) - after) <= 0.01 * size:
                return rule
    return None


def _solved(
    weight: Floats, gradient: Floats, update: Floats, eps: float, corrected: bool, decayed: bool
) -> Rule | None:
    """Learning rate (and decay) by least squares."""
    unit = Rule(1.0, eps, 0.0, corrected)
    moved = (weight - unit.step(weight, gradient)).reshape(-1)
    columns = np.stack([moved, weight.reshape(-1)] if decayed else [moved], axis=1)
    solution, *_ = np.linalg.lstsq(columns, update.reshape(-1), rcond=None)
    rate = float(solution[0])
    return (
        replace(unit, learning_rate=rate, decay=float(solution[1]) / rate if decayed else 0.0)
        if rate > 0
        else None
    )


def changes(
    theirs: Rule, weight: Floats, gradient: Floats, after: Floats
) -> Iterator[tuple[str, Rule]]:
    """The rule with one thing changed, each solved for from the departing side's weight."""
    update = weight - after
    yield "bias-correction", replace(theirs, corrected=not theirs.corrected)

    def cost(x: float) -> float:
        return float(
            np.linalg.norm(replace(theirs, eps=float(np.exp(x))).step(weight, gradient) - after)
        )

    yield (
        "optimizer-epsilon",
        replace(theirs, eps=float(np.exp(minimize(cost, np.log(np.logspace(-12, 0, 25)))))),
    )
    moved = weight - replace(theirs, decay=0.0).step(weight, gradient)
    energy = float(np.vdot(weight, weight)) * theirs.learning_rate
    if energy > 0:
        yield (
            "weight-decay",
            replace(theirs, decay=max(0.0, float(np.vdot(weight, update - moved)) / energy)),
        )
    whole = weight - theirs.step(weight, gradient)
    yield (
        "learning-rate",
        replace(
            theirs,
            learning_rate=theirs.learning_rate
            * float(np.vdot(whole, update) / np.vdot(whole, whole)),
        ),
    )


def _said(cause: str, rule: Rule, before: str = "") -> str:
    said = {
        "bias-correction": f"{'with' if rule.corrected else 'without'} bias correction",
        "optimizer-epsilon": f"epsilon = {rule.eps:.2g}",
        "weight-decay": f"weight decay = {rule.decay:.3g}",
        "learning-rate": f"learning rate = {rule.learning_rate:.4g}",
    }[cause]
    return before + said


def _figures(rule: Rule) -> dict[str, float]:
    return {"learning_rate": rule.learning_rate, "epsilon": rule.eps, "weight_decay": rule.decay}


HYPOTHESES = (Hypothesis("optimizer-epsilon", adam), Hypothesis("weight-decay", decayed))
