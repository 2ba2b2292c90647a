"""One step of Adam or SGD, from the weight before it, its gradient and the weight after it.

The moments were zero before the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.dtypes import get_unit_roundoff
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
#: A later pair of weight and gradient is taken only if it leaves much less; a rule with more
#: numbers than a simpler one only if it leaves far less.
_CLEARLY_BETTER, _FAR_BETTER = 0.5, 0.1
#: Fewest elements from which two coefficients are fitted.
_MIN_LINEAR_ELEMENTS = 8
#: Largest change of the weight's coefficient in one step, and residual of a linear update.
_MAX_WEIGHT_CHANGE, _MAX_LINEAR_RESIDUAL = 0.5, 1e-3
#: Relative distance within which fitted numbers are equal, and decays that count as none.
_MAX_NUMBER_ERROR, _MIN_DECAY = 5e-3, 1e-6
_MAX_FREE_EPSILON = 1e-3  #: up to this one an epsilon is fitted too coarsely to read its digits
_MIN_MOMENTUM = 0.5  #: a smaller number among the arguments is a rate or a decay
#: Nearest operands among which the gradient is that the update itself reads.
_MAX_DIRECT_OPERANDS = 4
#: Shares 1 - beta in use, the one of GANs, and how exactly float32 values show them.
_MIN_BETA_SHARE, _MAX_BETA_SHARE, _GAN_SHARE, _MAX_BETA_ERROR = 1e-4, 0.3, 0.5, 1e-5
#: What a rule adds up whose moment is no average, as SGD's momentum and AdaGrad do.
_SUMS = {"beta1": "a sum of gradients", "beta2": "a sum of squared gradients"}


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
    if any(_is_multiple(case.faithful, array) for array in _list_update_arrays(case)):
        return  # a decayed weight, before the step
    best_fit = _find_best_rule(case)
    if best_fit is None:
        return
    rule, weight, gradient = best_fit
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


def _is_multiple(value: Floats, array: AnyArray) -> bool:
    """Return whether a value is an array times a number, to the precision of float32."""
    rest = value - fit_factor(array, value) * array
    return bool(np.linalg.norm(rest) <= _NO_DECAY * np.linalg.norm(value))


def _find_best_rule(case: FaultCase) -> tuple[Rule, Floats, Floats] | None:
    """Return (rule, weight, gradient) that explain the faithful side's update best.

    A moment in place of the gradient gives nearly the same first step, but not the same epsilon.
    """
    best_fit, best_residual = None, float("inf")
    for weight, gradient in permutations(_list_update_arrays(case), 2):
        rule = fit_rule(weight, gradient, case.faithful)
        if rule is None:
            continue
        residual = float(np.linalg.norm(rule.step(weight, gradient) - case.faithful))
        if residual < _CLEARLY_BETTER * best_residual:
            best_fit, best_residual = (rule, weight, gradient), residual
    return best_fit


def _list_update_arrays(case: FaultCase) -> list[AnyArray]:
    """Return operands that may be weight and gradient, those that both sides have first."""
    operands = sorted(case.find_same_size_operands(), key=lambda operand: not operand.agrees)
    return [operand.array.reshape(case.faithful.shape) for operand in operands[:_MAX_OPERANDS]]


@dataclass(frozen=True)
class _LinearUpdate:
    """A value a g + b w of the optimizer: a sum of gradient and decay, a moment, a new weight."""

    of_gradient: float
    of_weight: float

    @property
    def is_weight(self) -> bool:
        """Whether the value is the weight after a step, not a sum of gradients."""
        return abs(self.of_weight - 1) < _MAX_WEIGHT_CHANGE

    @property
    def decay(self) -> float:
        """What is added per unit of the weight, in units of the value's gradient term."""
        return (self.of_weight - 1 if self.is_weight else self.of_weight) / self.of_gradient

    def compute(self, gradient: Floats, weight: Floats) -> Floats:
        """Return the value."""
        value: Floats = self.of_gradient * gradient + self.of_weight * weight
        return value


def suggest_linear_update(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another decay, rate or clipping in a value that is linear in gradient and weight.

    These are a step of SGD, the first moment of the first step, and the sum of gradient and decay.
    """
    if case.phase != OPTIMIZER or case.faithful.size < _MIN_LINEAR_ELEMENTS:
        return
    arrays = _list_update_arrays(case)
    weights = [
        operand.array.reshape(case.faithful.shape)
        for operand in case.find_same_size_operands()
        if operand.parameter
    ]
    for weight, gradient in product(weights, arrays):
        faithful = _fit_linear_update(weight, gradient, case.faithful)
        faulty = _fit_linear_update(weight, gradient, case.faulty)
        if faithful is None or faulty is None or faithful.is_weight != faulty.is_weight:
            continue
        cause, description, contrast = _compare_linear_updates(case, faithful, faulty, gradient)
        if not cause:
            continue
        yield Candidate(
            faulty.compute(gradient, weight),
            description,
            contrast,
            parameters={"weight_decay": faulty.decay},
            unchanged=faithful.compute(gradient, weight),
            cause=cause,
        )
        return


def _fit_linear_update(weight: Floats, gradient: Floats, value: Floats) -> _LinearUpdate | None:
    """Return a and b of value = a g + b w; None if the value is no such sum.

    A new weight is judged by what the step changed.
    """
    if gradient is weight or not np.any(gradient):
        return None
    design = np.stack([gradient.reshape(-1), weight.reshape(-1)], axis=1)
    flat = value.reshape(-1)
    if not (np.isfinite(design).all() and np.isfinite(flat).all()):
        return None
    (of_gradient, of_weight), _, rank, _ = np.linalg.lstsq(design, flat, rcond=None)
    if rank < design.shape[1] or of_gradient == 0:
        return None
    update = _LinearUpdate(float(of_gradient), float(of_weight))
    change = flat - weight.reshape(-1) if update.is_weight else flat
    residual = np.linalg.norm(update.compute(gradient, weight).reshape(-1) - flat)
    is_explained = residual <= _MAX_LINEAR_RESIDUAL * np.linalg.norm(change)
    return update if is_explained else None


def _compare_linear_updates(
    case: FaultCase, faithful: _LinearUpdate, faulty: _LinearUpdate, gradient: Floats
) -> tuple[str, str, str]:
    """Return (cause, description, contrast); ('', '', '') if more than one number differs."""
    ratio = faulty.of_gradient / faithful.of_gradient
    has_equal_gradient = abs(ratio - 1) <= _MAX_NUMBER_ERROR
    decays = [_round_decay(abs(update.decay)) for update in (faulty, faithful)]
    is_equal_decay = abs(decays[0] - decays[1]) <= _MAX_NUMBER_ERROR * max(decays)
    if has_equal_gradient and not is_equal_decay:
        return "weight-decay", f"weight decay = {decays[0]:.3g}", f"has {decays[1]:.3g}"
    if not has_equal_gradient and is_equal_decay and faithful.is_weight:
        rates = -faulty.of_gradient, -faithful.of_gradient
        momentum = _find_momentum(case, rates[0] / rates[1])
        if momentum is not None:
            texts = ("Nesterov momentum", "plain momentum")
            own, other = texts if rates[0] > rates[1] else texts[::-1]
            return "momentum-kind", f"{own} ({momentum:.4g})", f"has {other}"
        clip_text = _describe_one_sided_clip(case, ratio)
        if clip_text:
            return "clip", f"gradients {ratio:.4g} times the {case.faithful_side}'s", clip_text
        if _is_read_directly(case, gradient) and min(rates) > 0:
            description = f"learning rate = {rates[0]:.4g}"
            return "learning-rate", description, f"has learning rate = {rates[1]:.4g}"
    if not has_equal_gradient and (is_equal_decay or _scales_gradient_alone(faithful, faulty)):
        return "clip", f"gradients {ratio:.4g} times the {case.faithful_side}'s", ""
    return "", "", ""


def _find_momentum(case: FaultCase, ratio: float) -> float | None:
    """Return the recorded momentum m for which one step is 1 + m times the other; None if none.

    A first step with Nesterov's momentum is g + m g, without it g; Sutskever et al., ICML 2013.
    """
    for number in (*case.numbers, *case.faulty_numbers):
        is_momentum = _MIN_MOMENTUM <= number < 1
        if is_momentum and abs(max(ratio, 1 / ratio) - 1 - number) <= _MAX_NUMBER_ERROR:
            return number
    return None


def _describe_one_sided_clip(case: FaultCase, ratio: float) -> str:
    """Return what is said of a number by which one side alone multiplies its gradients.

    '' if there is none. Such a number is computed, from the norm of all gradients, and makes the
    ratio of the two steps.
    """
    for operands, factor in ((case.operands, 1 / ratio), (case.faulty_operands, ratio)):
        for operand in operands:
            is_number = int(np.prod(operand.shape)) == 1 and operand.kind and not operand.parameter
            if not is_number or not operand.is_floating:
                continue
            if abs(float(operand.array.reshape(-1)[0]) - factor) <= _MAX_NUMBER_ERROR * factor:
                if operands is case.operands:
                    return f"multiplies them by {operand.name}"
                return f"does not multiply them by {operand.name}"
    return ""


def _round_decay(decay: float) -> float:
    """Return a fitted decay, 0 if it is so small that it is rounding."""
    return decay if decay > _MIN_DECAY else 0.0


def _is_read_directly(case: FaultCase, gradient: Floats) -> bool:
    """Return whether the update itself reads this gradient, and both sides have it.

    Then nothing clipped it on one side only.
    """
    for operand in list(case.find_same_size_operands())[:_MAX_DIRECT_OPERANDS]:
        if operand.agrees and np.array_equal(operand.array.reshape(gradient.shape), gradient):
            return True
    return False


def _scales_gradient_alone(faithful: _LinearUpdate, faulty: _LinearUpdate) -> bool:
    """Return whether only the gradient's term differs."""
    difference = abs(faulty.of_weight - faithful.of_weight)
    return difference <= _MAX_NUMBER_ERROR * max(abs(faithful.decay * faithful.of_gradient), 1e-9)


def suggest_moment_share(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another beta in the first moments, (1 - beta1) g and (1 - beta2) g^2.

    A rule that adds up what the other one averages has all of it.
    """
    if case.phase != OPTIMIZER or case.faithful.size < _MIN_LINEAR_ELEMENTS:
        return
    for gradient in _list_update_arrays(case):
        for name, power in (("beta1", gradient), ("beta2", gradient * gradient)):
            shares = [fit_factor(power, value) for value in (case.faulty, case.faithful)]
            are_averages = [_is_beta_share(share) for share in shares]
            are_sums = [abs(share - 1) <= _MAX_BETA_ERROR for share in shares]
            if not any(are_averages) or not all(map(any, zip(are_averages, are_sums, strict=True))):
                continue
            statements = [
                f"{name} = {1 - share:.6g}" if is_average else _SUMS[name]
                for share, is_average in zip(shares, are_averages, strict=True)
            ]
            yield Candidate(
                shares[0] * power,
                statements[0],
                f"has {statements[1]}",
                parameters={name: 1 - shares[0]},
                unchanged=shares[1] * power,
                cause="beta" if all(are_averages) else "update-rule",
            )


def _is_beta_share(share: float) -> bool:
    """Return whether 1 - share can be a beta: people choose shares of one or two digits."""
    if abs(share - _GAN_SHARE) <= _MAX_BETA_ERROR:
        return True
    if not _MIN_BETA_SHARE <= share <= _MAX_BETA_SHARE:
        return False
    rounded_share = float(f"{share:.2g}")
    # 1 - beta in float32 is as exact as beta, which is nearly one
    max_error = max(_MAX_BETA_ERROR * rounded_share, get_unit_roundoff("float32"))
    return abs(share - rounded_share) <= max_error


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
        cause, description, contrast = describe_decay(
            faulty_factor, faithful_factor, case.has_equal_step
        )
        yield Candidate(
            faulty_factor * weight,
            description,
            contrast,
            parameters={"decay": 1 - faulty_factor},
            unchanged=faithful_factor * weight,
            cause=cause,
        )


def suggest_decayed_step(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a new weight that differs by a multiple of the old one: by another decay.

    That is all that a small weight shows, whose step is not explained by itself.
    """
    if case.phase != OPTIMIZER or case.faithful.size < 2:
        return
    difference = case.faulty - case.faithful
    for operand in case.find_same_size_operands():
        weight = operand.array.reshape(case.faithful.shape)
        decay = -fit_factor(weight, difference) if operand.parameter else 0.0
        if not _NO_DECAY < abs(decay) < 1 - _MIN_DECAY_FACTOR:
            continue
        text = f"learning rate x weight decay {decay:.3g} more than the {case.faithful_side}'s"
        if decay < 0:
            text = f"learning rate x weight decay {-decay:.3g} less than the {case.faithful_side}'s"
        yield Candidate(
            case.faithful - decay * weight,
            text,
            parameters={"decay": decay},
            unchanged=case.faithful,
            cause="weight-decay",
        )


def describe_decay(
    faulty_factor: float, faithful_factor: float, has_equal_step: bool | None
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of weights multiplied by 1 - rate x decay.

    ``has_equal_step``: the rest of the update has the same length on both sides.
    """
    has_undecayed_side = max(faithful_factor, faulty_factor) > 1 - _NO_DECAY
    return (
        "weight-decay" if has_undecayed_side or has_equal_step else "learning-rate",
        f"learning rate x weight decay = {_format_decay(faulty_factor)}",
        f"has {_format_decay(faithful_factor)}",
    )


def _format_decay(factor: float) -> str:
    """Return 1 minus the factor; float32 weights show it to two or three digits."""
    decay = 1 - factor
    return f"{decay:.3g}" if decay > _NO_DECAY else "0"


def _is_decay_factor(factor: float) -> bool:
    return _MIN_DECAY_FACTOR < factor <= 1 + _NO_DECAY


def fit_rule(weight: Floats, gradient: Floats, new_weight: Floats) -> Rule | None:
    """Return the simplest rule that explains an update to one percent; None if none does.

    A rule with more numbers takes its place only if it leaves a tenth or less: a decay changes a
    first step of Adam by little.
    """
    update = weight - new_weight
    update_norm = float(np.linalg.norm(update))
    if update_norm == 0 or not np.any(gradient):
        return None
    best_rule, max_residual = None, _MAX_FIT_RESIDUAL * update_norm
    for corrected in (True, False):
        for has_decay in (False, True):
            rule = _solve_rule(weight, gradient, update, corrected, has_decay)
            if rule is None:
                continue
            residual = float(np.linalg.norm(rule.step(weight, gradient) - new_weight))
            if residual <= max_residual:
                best_rule, max_residual = rule, _FAR_BETTER * residual
    return best_rule


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
    other_eps = replace(rule, eps=eps)
    is_other = _format_rule("optimizer-epsilon", other_eps) != _format_rule(
        "optimizer-epsilon", rule
    )
    if is_other and _is_written_epsilon(eps):
        yield "optimizer-epsilon", other_eps
    undecayed_update = weight - replace(rule, decay=0.0).step(weight, gradient)
    energy = float(np.vdot(weight, weight)) * rule.learning_rate
    if energy > 0:
        decay = _round_decay(float(np.vdot(weight, update - undecayed_update)) / energy)
        if rule.learning_rate * decay <= 1 - _MIN_DECAY_FACTOR:
            yield "weight-decay", replace(rule, decay=decay)
    rule_update = weight - rule.step(weight, gradient)
    factor = float(np.vdot(rule_update, update) / np.vdot(rule_update, rule_update))
    yield "learning-rate", replace(rule, learning_rate=rule.learning_rate * factor)


def _is_written_epsilon(eps: float) -> bool:
    """Return whether people write an epsilon: a large one has one digit.

    With some large number, Adam's first step is nearly that of another rule, such as SGD.
    """
    written_eps = float(f"{eps:.1g}")
    return eps <= _MAX_FREE_EPSILON or abs(eps - written_eps) <= _MAX_NUMBER_ERROR * written_eps


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
    Hypothesis("beta", suggest_moment_share),
    Hypothesis("optimizer-epsilon", suggest_adam),
    Hypothesis("weight-decay", suggest_linear_update),
    Hypothesis("weight-decay", suggest_decay),
    Hypothesis("weight-decay", suggest_decayed_step),
)
