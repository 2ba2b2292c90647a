"""One step of Adam or SGD, from the weight before it, its gradient and the weight after it.

The moments were zero before the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ...model.arrays import Floats
from ...model.trace import OPTIMIZER
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor, minimize

#: A weight that keeps more than 1 minus this is not decayed, to the precision of float32.
_NO_DECAY = 1e-7
#: Smallest factor by which weight decay multiplies a weight; less is no decay of a weight.
_MIN_DECAY_FACTOR = 0.5
_BETAS = (0.9, 0.999)
_DEFAULT_EPS = 1e-8
_EPS_GRID = np.log(np.logspace(-12, 0, 25))
#: Operands that are tried as weight and gradient.
_MAX_OPERANDS = 8
#: Share of the faithful side's update that a fitted rule may leave, and of the difference of the
#: updates that a changed rule may leave.
_MAX_FIT_RESIDUAL, _MAX_CHANGE_RESIDUAL = 0.01, 0.02


@dataclass(frozen=True)
class Rule:
    """The first step of AdamW; Loshchilov and Hutter, arXiv:1711.05101, algorithm 2."""

    learning_rate: float
    eps: float = _DEFAULT_EPS
    decay: float = 0.0
    corrected: bool = True

    def step(self, weight: Floats, gradient: Floats) -> Floats:
        """Return the weight after the step.

        The moments are (1 - beta1) g and (1 - beta2) g^2, divided by the same if corrected.
        """
        first, second = 1.0, 1.0
        if not self.corrected:
            first, second = 1 - _BETAS[0], 1 - _BETAS[1]
        direction = first * gradient / (np.sqrt(second) * np.abs(gradient) + self.eps)
        new_weight: Floats = weight - self.learning_rate * (direction + self.decay * weight)
        return new_weight


def suggest_adam(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the rule that gives the faithful side's weight, with one change."""
    if case.phase != OPTIMIZER or case.faithful.size < 2:
        return
    arrays = list(case.find_same_size_arrays())[:_MAX_OPERANDS]
    for weight, gradient in permutations(arrays, 2):
        rule = fit_rule(weight, gradient, case.faithful)
        if rule is None:
            continue
        unchanged = rule.step(weight, gradient)
        difference = float(np.linalg.norm(case.faulty - case.faithful))
        for cause, changed_rule in change_rule(rule, weight, gradient, case.faulty):
            predicted = changed_rule.step(weight, gradient)
            # The step is small compared with the weight: judge the update, not the weight.
            residual = float(np.linalg.norm(predicted - case.faulty))
            if not residual <= _MAX_CHANGE_RESIDUAL * difference:
                continue
            yield Candidate(
                predicted,
                _format_rule(cause, changed_rule),
                f"has {_format_rule(cause, rule)}",
                parameters=_list_parameters(changed_rule),
                unchanged=unchanged,
                cause=cause,
            )
        return


def suggest_decay(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a weight times 1 - rate x decay: no decay on one side, or another rate."""
    factors = [value for value in case.numbers if _MIN_DECAY_FACTOR < value < 1]
    if case.phase != OPTIMIZER or case.faithful.size < 2 or len(factors) > 1:
        return
    for weight in case.find_same_size_arrays():
        faithful_factor = fit_factor(weight, case.faithful)
        faulty_factor = fit_factor(weight, case.faulty)
        if not _is_decay_factor(faithful_factor) or not _is_decay_factor(faulty_factor):
            continue
        has_undecayed_side = max(faithful_factor, faulty_factor) > 1 - _NO_DECAY
        yield Candidate(
            faulty_factor * weight,
            f"learning rate x weight decay = {_format_decay(faulty_factor)}",
            f"has {_format_decay(faithful_factor)}",
            parameters={"decay": 1 - faulty_factor},
            unchanged=faithful_factor * weight,
            cause="weight-decay" if has_undecayed_side else "learning-rate",
        )


def _format_decay(factor: float) -> str:
    """Return 1 minus the factor; float32 weights show it to two or three digits."""
    decay = 1 - factor
    return f"{decay:.3g}" if decay > _NO_DECAY else "0"


def _is_decay_factor(factor: float) -> bool:
    return _MIN_DECAY_FACTOR < factor <= 1 + _NO_DECAY


def fit_rule(weight: Floats, gradient: Floats, new_weight: Floats) -> Rule | None:
    """Return a rule that explains an update to one percent; None if none does."""
    update = weight - new_weight
    update_norm = float(np.linalg.norm(update))
    if update_norm == 0 or not np.any(gradient):
        return None
    for corrected in (True, False):
        for has_decay in (False, True):
            rule = _solve_rule(weight, gradient, update, corrected, has_decay)
            if rule is None:
                continue
            residual = np.linalg.norm(rule.step(weight, gradient) - new_weight)
            if residual <= _MAX_FIT_RESIDUAL * update_norm:
                return rule
    return None


def _solve_rule(
    weight: Floats, gradient: Floats, update: Floats, corrected: bool, has_decay: bool
) -> Rule | None:
    """Return the rule with learning rate (and decay) by least squares.

    None if it goes uphill, if it removes more of the weight than a decay does, or if any number is
    not finite.
    """
    unit_rule = Rule(1.0, _DEFAULT_EPS, 0.0, corrected)
    columns = [(weight - unit_rule.step(weight, gradient)).reshape(-1)]
    if has_decay:
        columns.append(weight.reshape(-1))
    design = np.stack(columns, axis=1)
    if not (np.isfinite(design).all() and np.isfinite(update).all()):
        return None  # LAPACK would print a message to standard output
    solution, *_ = np.linalg.lstsq(design, update.reshape(-1), rcond=None)
    rate = float(solution[0])
    if not rate > 0:
        return None
    decay = float(solution[1]) / rate if has_decay else 0.0
    if abs(rate * decay) > 1 - _MIN_DECAY_FACTOR:
        return None
    return replace(unit_rule, learning_rate=rate, decay=decay)


def change_rule(
    rule: Rule, weight: Floats, gradient: Floats, new_weight: Floats
) -> Iterator[tuple[str, Rule]]:
    """Yield (cause, rule with one change), the changed number fitted to ``new_weight``."""
    update = weight - new_weight
    yield "bias-correction", replace(rule, corrected=not rule.corrected)

    def measure_distance(log_eps: float) -> float:
        changed_rule = replace(rule, eps=float(np.exp(log_eps)))
        return float(np.linalg.norm(changed_rule.step(weight, gradient) - new_weight))

    eps = float(np.exp(minimize(measure_distance, _EPS_GRID)))
    yield "optimizer-epsilon", replace(rule, eps=eps)
    undecayed_update = weight - replace(rule, decay=0.0).step(weight, gradient)
    energy = float(np.vdot(weight, weight)) * rule.learning_rate
    if energy > 0:
        decay = max(0.0, float(np.vdot(weight, update - undecayed_update)) / energy)
        if rule.learning_rate * decay <= 1 - _MIN_DECAY_FACTOR:
            yield "weight-decay", replace(rule, decay=decay)
    rule_update = weight - rule.step(weight, gradient)
    factor = float(np.vdot(rule_update, update) / np.vdot(rule_update, rule_update))
    yield "learning-rate", replace(rule, learning_rate=rule.learning_rate * factor)


def _format_rule(cause: str, rule: Rule) -> str:
    """Return the part of a rule that a cause is about."""
    if cause == "bias-correction":
        return "with bias correction" if rule.corrected else "without bias correction"
    if cause == "optimizer-epsilon":
        return f"epsilon = {rule.eps:.2g}"
    if cause == "weight-decay":
        return f"weight decay = {rule.decay:.3g}"
    return f"learning rate = {rule.learning_rate:.4g}"


def _list_parameters(rule: Rule) -> dict[str, float]:
    return {"learning_rate": rule.learning_rate, "epsilon": rule.eps, "weight_decay": rule.decay}


HYPOTHESES = (
    Hypothesis("optimizer-epsilon", suggest_adam),
    Hypothesis("weight-decay", suggest_decay),
)
