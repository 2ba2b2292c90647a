"""Normalizations: another epsilon, the other kind of norm, or the weight of another norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD, OPTIMIZER
from ..fault_case import ONE, ZERO, FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis

#: Kinds of ops that take a root or divide by one.
_ROOT_KINDS = {"div", "addcdiv", "rsqrt", "sqrt", "pow", "reciprocal"}
#: Epsilons beyond this are something else; while one is solved for, ten times as much may appear.
_MAX_EPS = 1.0
_MAX_SOLVED_EPS = 10 * _MAX_EPS
#: A larger number that only one side adds is no epsilon: people write 1e-2 at most.
_MAX_LONE_EPS = 2e-2
#: A smaller number is rounding: that side adds nothing.
_NO_EPS = 5e-7
#: Fewest values of a tensor: any single number is some epsilon away from any other, and two that
#: are equally far away are no chance.
_MIN_VALUES = 2
#: A recorded number within 20 % (and 1e-7) of a solved epsilon is that epsilon.
_RECORDED_SHARE, _RECORDED_DISTANCE = 0.2, 1e-7
_KIND_NAMES = {"rms": "RMS norm", "layer": "layer norm"}
#: A mean square is divided by n; other divisors, as factors of it: n - 1, and none (a sum).
_DIVISOR_TEXTS = {"n": "divides by n", "n - 1": "divides by n - 1", "1": "has the sum of squares"}
#: A fit with another divisor counts if it leaves less than this share of what n leaves.
_DIVISOR_SHARE = 1 / 3
#: Relative L2 of the means of rows without a mean: a layer norm of these is an RMS norm.
_CENTERED_DISTANCE = 1e-5
#: Losses of labels from 0 to 1: what is added to these is no epsilon.
LABEL_LOSSES = {"bce_loss"}
_LAST_AXIS, _IMAGE_AXES = (-1,), (0, 2, 3)


def suggest_epsilon_in_sum(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another epsilon in a sum under a root, if faulty - faithful is one number."""
    if case.faithful.size < _MIN_VALUES or not case.consumer_kinds & _ROOT_KINDS:
        return
    is_computed = not case.is_source and not case.is_discrete
    if case.phase == BACKWARD or not is_computed or case.consumer_kinds & LABEL_LOSSES:
        return
    for variance in case.find_same_size_arrays():
        faithful_eps = float(np.mean(case.faithful.reshape(-1) - variance.reshape(-1)))
        faulty_eps = float(np.mean(case.faulty.reshape(-1) - variance.reshape(-1)))
        if not -1e-9 < faithful_eps < _MAX_EPS or not 0 <= faulty_eps < _MAX_EPS:
            continue
        if np.min(variance) >= 0:
            predicted, unchanged = variance + faulty_eps, variance + faithful_eps
            candidate = _make_epsilon_candidate(
                case, predicted, faulty_eps, unchanged, faithful_eps
            )
            if is_offset(faulty_eps, faithful_eps):
                description, contrast = describe_offset(faulty_eps, faithful_eps)
                candidate = replace(
                    candidate,
                    description=description,
                    contrast=contrast,
                    parameters={"offset": faulty_eps - faithful_eps},
                    cause="constant-offset",
                )
            yield candidate


def is_offset(number: float, other_number: float) -> bool:
    """Return whether one side adds a number that is no epsilon, and the other one nothing."""
    low, high = sorted((abs(number), abs(other_number)))
    return low < _NO_EPS and high > _MAX_LONE_EPS


def describe_offset(number: float, other_number: float) -> tuple[str, str]:
    """Return what a side does that adds a number, and what the other one does."""
    addend, other_addend = (x if abs(x) >= _NO_EPS else 0.0 for x in (number, other_number))
    return f"a sum with {addend:.4g}", f"adds {other_addend:.4g}"


def suggest_epsilon_in_root(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another epsilon in 1 / sqrt(v + eps) or sqrt(v + eps), for an operand v >= 0."""
    if not case.is_forward_value or case.faithful.size < _MIN_VALUES:
        return
    if np.min(case.faithful) <= 0 or np.min(case.faulty) <= 0:
        return
    for variance in case.find_same_size_arrays():
        if variance.min() < 0:
            continue
        for power in (-0.5, 0.5):
            faulty_eps = float(np.median(case.faulty ** (1 / power) - variance))
            faithful_eps = float(np.median(case.faithful ** (1 / power) - variance))
            if 0 <= faulty_eps < _MAX_EPS and abs(faithful_eps) < _MAX_EPS:
                predicted = (variance + faulty_eps) ** power
                unchanged = (variance + faithful_eps) ** power
                yield _make_epsilon_candidate(case, predicted, faulty_eps, unchanged, faithful_eps)


@dataclass(frozen=True, eq=False)
class _Norm:
    """normalize(x) weight + bias, without its epsilon."""

    kind: str  #: rms or layer
    x: AnyArray
    axes: tuple[int, ...]
    weight: AnyArray
    bias: AnyArray
    divisor: str = "n"  #: of the sum of squares, one of _DIVISOR_TEXTS

    def compute(self, eps: float) -> Floats:
        """Return the output with this epsilon."""
        centered, variance = self._center(keepdims=True)
        result: Floats = centered / np.sqrt(variance + eps) * self.weight + self.bias
        return result

    def solve_epsilon(self, output: AnyArray) -> float | None:
        """Return the epsilon for which the norm gives ``output``; None if there is none.

        epsilon = 1 / f^2 - variance with f = <x w, y - b> / <x w, x w> per row: the median over
        the rows.
        """
        centered, variance = self._center(keepdims=False)
        direction = centered * self.weight
        with np.errstate(all="ignore"):
            projection = np.sum(direction * (output - self.bias), axis=self.axes)
            factor = projection / np.sum(direction * direction, axis=self.axes)
            eps = float(np.median(1 / (factor * factor) - variance))
        if not np.isfinite(eps) or abs(eps) >= _MAX_SOLVED_EPS:
            return None
        return max(eps, 0.0)

    def is_centered(self) -> bool:
        """Return whether x has no mean, so that both kinds of norm are one."""
        means = np.broadcast_to(self.x.mean(axis=self.axes, keepdims=True), self.x.shape)
        norm = float(np.linalg.norm(self.x))
        return float(np.linalg.norm(means)) <= _CENTERED_DISTANCE * norm

    def _center(self, keepdims: bool) -> tuple[AnyArray, AnyArray]:
        """Return (x, its mean square), for a layer norm without the mean of x."""
        centered = self.x
        if self.kind == "layer":
            centered = self.x - self.x.mean(axis=self.axes, keepdims=True)
        squares = np.sum(centered * centered, axis=self.axes, keepdims=keepdims)
        n_elements = self.x.size // max(squares.size, 1)
        divisors = {"n": n_elements, "n - 1": max(n_elements - 1, 1), "1": 1}
        return centered, squares / divisors[self.divisor]


def suggest_whole_norm(case: FaultCase) -> Iterator[Candidate]:
    """Suggest norm(x) w + b with another epsilon, divisor or weight, or the other kind of norm."""
    if not case.is_forward_value or case.faithful.ndim < 1:
        return
    vectors = [operand.array for operand in case.find_vector_operands()]
    for x in list(case.find_same_size_arrays()):
        for axes in (_LAST_AXIS, _IMAGE_AXES) if x.ndim == 4 else (_LAST_AXIS,):
            broadcast_vectors = _broadcast_vectors(vectors, x.shape, axes)
            fit = _fit_norm(case, x, axes, broadcast_vectors)
            if fit is None:
                continue
            norm, eps = fit
            if norm.is_centered():
                continue  # a part of a layer norm: what its mean was taken from says more
            yield from _change_norm(case, norm, eps)
            yield from _change_weight(case, norm, eps)
            return


def _change_norm(case: FaultCase, norm: _Norm, faithful_eps: float) -> Iterator[Candidate]:
    unchanged = norm.compute(faithful_eps)
    for kind in ("rms", "layer"):
        biases = [norm.bias]
        if kind != norm.kind and norm.bias is not ZERO:
            biases.append(ZERO)
        for bias in biases:
            fit = _fit_divisor(replace(norm, kind=kind, bias=bias), case.faulty)
            if fit is None:
                continue
            changed_norm, faulty_eps = fit
            predicted = changed_norm.compute(faulty_eps)
            if kind != norm.kind:
                yield Candidate(
                    predicted,
                    f"{_KIND_NAMES[kind]}, epsilon {faulty_eps:.2g}",
                    f"has {_KIND_NAMES[norm.kind]}",
                    parameters={"epsilon": faulty_eps},
                    unchanged=unchanged,
                    cause="norm-kind",
                )
            elif changed_norm.divisor == norm.divisor:
                yield _make_epsilon_candidate(case, predicted, faulty_eps, unchanged, faithful_eps)
            else:
                yield _make_divisor_candidate(norm, changed_norm, predicted, unchanged)


def _make_divisor_candidate(
    norm: _Norm, changed_norm: _Norm, predicted: AnyArray, unchanged: AnyArray
) -> Candidate:
    """Return the candidate of another divisor of the sum of squares."""
    is_mean = {norm.divisor, changed_norm.divisor} == {"n", "n - 1"}
    texts = {
        "n": "the mean square",
        "n - 1": "the unbiased variance (n - 1)",
        "1": "the sum of squares in place of their mean",
    }
    return Candidate(
        predicted,
        f"{_KIND_NAMES[norm.kind]} with {texts[changed_norm.divisor]}",
        _DIVISOR_TEXTS[norm.divisor],
        unchanged=unchanged,
        cause="biased-variance" if is_mean else "norm-kind",
    )


def _change_weight(case: FaultCase, norm: _Norm, eps: float) -> Iterator[Candidate]:
    """Suggest the norm without its weight and bias, or with those of another norm.

    The faulty side read the other ones here, and both sides hold them.
    """
    own_name = _find_parameter_name(case, norm.weight)
    if not own_name:
        return
    unchanged = norm.compute(eps)
    bare_forms = [(ONE, ZERO, "affine-missing", "without its weight")]
    if norm.bias is not ZERO:
        bare_forms = [
            (ONE, ZERO, "affine-missing", "without weight and bias"),
            (ONE, norm.bias, "affine-missing", "without its weight"),
            (norm.weight, ZERO, "bias-missing", "without its bias"),
        ]
    for weight_array, bias, cause, text in bare_forms:
        bare_norm = replace(norm, weight=weight_array, bias=bias)
        description = f"{_KIND_NAMES[norm.kind]} {text}"
        yield Candidate(bare_norm.compute(eps), description, unchanged=unchanged, cause=cause)
    others = [
        operand
        for operand in case.faulty_operands
        if operand.parameter and operand.agrees and operand.shape == (norm.weight.size,)
    ]
    for weight in others:
        if weight.parameter == own_name:
            continue
        biases = [norm.bias]
        if norm.bias is not ZERO:
            biases += [item.array.reshape(norm.bias.shape) for item in others]
        for bias in biases:
            shaped_weight = weight.array.reshape(norm.weight.shape)
            changed_norm = replace(norm, weight=shaped_weight, bias=bias)
            yield Candidate(
                changed_norm.compute(eps),
                f"{weight.parameter} in its place",
                f"multiplies by {own_name}",
                unchanged=unchanged,
                cause="weight-swapped",
            )


def _find_parameter_name(case: FaultCase, weight: AnyArray) -> str:
    """Return the name of the parameter that a weight is; '' if it is none."""
    for operand in case.find_vector_operands():
        if operand.parameter and np.array_equal(operand.array, weight.reshape(-1)):
            return operand.parameter
    return ""


def _fit_norm(
    case: FaultCase, x: AnyArray, axes: tuple[int, ...], vectors: Sequence[AnyArray]
) -> tuple[_Norm, float] | None:
    """Return (norm, epsilon) with which the norm of x is the faithful side's value."""
    for kind in ("rms", "layer"):
        biases = [ZERO, *vectors] if kind == "layer" else [ZERO]
        for weight, bias in product([*vectors, ONE], biases):
            fit = _fit_divisor(_Norm(kind, x, axes, weight, bias), case.faithful)
            if fit is not None and case.matches_faithful(fit[0].compute(fit[1])):
                return fit
    return None


def _fit_divisor(norm: _Norm, output: AnyArray) -> tuple[_Norm, float] | None:
    """Return (norm, epsilon) nearest to an output, over the divisors of the sum of squares.

    With a variance that is equal in all rows, an epsilon has the effect of a divisor: another
    divisor than n counts only if it leaves less.
    """
    best: tuple[_Norm, float] | None = None
    least_residual = np.inf
    for divisor in _DIVISOR_TEXTS:
        changed_norm = replace(norm, divisor=divisor)
        eps = changed_norm.solve_epsilon(output)
        if eps is None:
            continue
        residual = compute_residual(changed_norm.compute(eps), output)
        if best is None or residual < _DIVISOR_SHARE * least_residual:
            best, least_residual = (changed_norm, eps), residual
    return best


def _broadcast_vectors(
    vectors: Sequence[AnyArray], shape: tuple[int, ...], axes: tuple[int, ...]
) -> list[AnyArray]:
    """Return the vectors that fit the last axis, or the channels (axis 1), ready to multiply."""
    if axes == _LAST_AXIS:
        return [vector for vector in vectors if vector.size == shape[-1]]
    trailing_ones = [1] * (len(shape) - 2)
    return [vector.reshape(-1, *trailing_ones) for vector in vectors if vector.size == shape[1]]


def suggest_centering(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that only one side subtracts the mean inside a norm."""
    if not case.is_forward_value:
        return
    for operand in list(case.operands):
        x = operand.array
        if not operand.is_floating or x.ndim < 2:
            continue
        centered = x - x.mean(axis=-1, keepdims=True)
        squares, centered_squares = x * x, centered * centered
        mean_square = np.mean(squares, -1, keepdims=True)
        variance = np.mean(centered_squares, -1, keepdims=True)
        for rms, layer in (
            (x, centered),
            (squares, centered_squares),
            (mean_square, variance),
        ):
            if rms.size != case.faithful.size:
                continue
            yield Candidate(layer, "layer norm", "has RMS norm", unchanged=rms, cause="norm-kind")
            yield Candidate(rms, "RMS norm", "has layer norm", unchanged=layer, cause="norm-kind")


def _make_epsilon_candidate(
    case: FaultCase,
    predicted: AnyArray,
    faulty_eps: float,
    unchanged: AnyArray,
    faithful_eps: float,
) -> Candidate:
    """Return the candidate; recorded numbers near the solved ones are reported in their place."""
    faithful_eps = _find_recorded_eps(case.numbers, faithful_eps)
    faulty_eps = _find_recorded_eps(case.faulty_numbers, faulty_eps)
    return Candidate(
        predicted,
        f"epsilon = {faulty_eps:.2g}",
        f"uses {max(faithful_eps, 0.0):.2g}",
        parameters={"epsilon": faulty_eps},
        unchanged=unchanged,
        cause="optimizer-epsilon" if case.phase == OPTIMIZER else "epsilon",
    )


def _find_recorded_eps(numbers: Sequence[float], eps: float) -> float:
    """Return the recorded number that a solved epsilon is; the epsilon if none is near."""
    recorded_numbers = [value for value in numbers if 0 < value < _MAX_EPS]
    recorded_eps = min(recorded_numbers, key=lambda value: abs(value - eps), default=eps)
    max_distance = _RECORDED_SHARE * recorded_eps + _RECORDED_DISTANCE
    return recorded_eps if abs(recorded_eps - eps) < max_distance else eps


HYPOTHESES = (
    Hypothesis("epsilon", suggest_epsilon_in_sum),
    Hypothesis("epsilon", suggest_epsilon_in_root),
    Hypothesis("epsilon", suggest_whole_norm),
    Hypothesis("norm-kind", suggest_centering),
)
