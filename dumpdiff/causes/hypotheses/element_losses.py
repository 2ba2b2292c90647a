"""A loss of two tensors, element by element: which function, which threshold, which mean.

Each side's loss is recognized by itself, from a prediction and a target that both sides have; then
the two are compared. So it does not matter which of them is one op and which is written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...model.arrays import AnyArray
from ...operators.losses import THRESHOLD_NAMES, compute_element_losses
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis

LOSS_NAMES = {
    "mse_loss": "mean squared error",
    "l1_loss": "L1 loss",
    "smooth_l1_loss": "smooth L1 loss",
    "huber_loss": "Huber loss",
    "bce_loss": "binary cross-entropy of probabilities",
    "bce_with_logits": "binary cross-entropy of logits",
}
#: A single loss lies between the losses of two thresholds in any case. So only a threshold of two
#: digits counts, as people choose it; it is searched between these.
_MIN_THRESHOLD, _MAX_THRESHOLD, _THRESHOLD_DIGITS = 1e-3, 1e2, 2
_BISECTIONS = 60
#: Residual of a loss with a number of two digits that was searched: within 1e-4, one in a hundred
#: such losses of other tensors is as near by chance.
_MAX_FITTED_RESIDUAL = 1e-5
#: Fewest elements of a prediction, and operands that are tried as predictions and targets: a single
#: number is explained by chance if many forms of many tensors are tried.
_MIN_ELEMENTS, _MAX_OPERANDS = 4, 6
#: Predictions of which each is compared with every target, at most: 8 MB.
_MAX_BROADCAST = 1 << 10


@dataclass(frozen=True)
class _Form:
    """How two tensors become one number."""

    kind: str
    reduction: str  #: mean, sum, or sum divided by the first axis
    threshold: float = 0.0  #: of the kinds that have one
    positive_weight: float = 1.0  #: of the elements whose target is one
    #: every prediction is compared with every target: (n, 1) and (n,) were broadcast to (n, n)
    is_broadcast: bool = False

    def describe(self) -> str:
        name = LOSS_NAMES[self.kind]
        if self.kind in THRESHOLD_NAMES:
            name = f"{name} with {THRESHOLD_NAMES[self.kind]} = {self.threshold:g}"
        if self.positive_weight != 1:
            name = f"{name}, of which positive ones count {self.positive_weight:g} times"
        if self.is_broadcast:
            name = f"{name}, of every prediction and every target"
        return f"{name} ({self.reduction})"


@dataclass(frozen=True, eq=False)
class _Tensors:
    """A prediction and a target of one shape."""

    prediction: AnyArray
    target: AnyArray

    def compute(self, form: _Form) -> float:
        prediction, target = self.prediction, self.target
        if form.is_broadcast:
            prediction, target = prediction.reshape(-1, 1), target.reshape(-1)
        losses = compute_element_losses(form.kind, prediction, target, form.threshold or 1.0)
        if form.positive_weight != 1:
            losses = np.where(target == 1, form.positive_weight, 1.0) * losses
        divisors = {"mean": losses.size, "sum": 1}
        return float(losses.sum()) / divisors.get(form.reduction, len(losses))

    def list_forms(self, value: float) -> Iterator[_Form]:
        """Yield every form, with the threshold that comes nearest to a value."""
        reductions = ["mean", "sum"]
        if self.target.ndim > 1 and len(self.target) > 1:
            reductions.append(f"sum divided by {len(self.target)}")
        is_probability = self.target.min() >= 0 and self.target.max() <= 1
        are_probabilities = self.prediction.min() >= 0 and self.prediction.max() <= 1
        for kind in LOSS_NAMES:
            if kind.startswith("bce") and not is_probability:
                continue
            if kind == "bce_loss" and not are_probabilities:
                continue
            forms = [_Form(kind, reduction) for reduction in reductions]
            if self.prediction.size == max(self.prediction.shape) <= _MAX_BROADCAST:
                forms += [replace(form, is_broadcast=True) for form in forms]
            for form in forms:
                if kind not in THRESHOLD_NAMES:
                    yield form
                    weight = self._fit_positive_weight(form, value)
                    if weight:
                        yield replace(form, positive_weight=weight)
                    continue
                threshold = self._fit_threshold(form, value)
                if threshold:
                    yield replace(form, threshold=threshold)

    def _fit_positive_weight(self, form: _Form, value: float) -> float:
        """Return the weight of two digits of the positive elements that gives a value.

        0 if there is none, or if the targets are not zeros and ones.
        """
        is_binary = form.kind.startswith("bce") and np.isin(self.target, (0, 1)).all()
        if not is_binary or self.target.min() == self.target.max():
            return 0.0
        with_none, with_all = (
            self.compute(replace(form, positive_weight=weight)) for weight in (0.0, 1.0)
        )
        weight = (value - with_none) / ((with_all - with_none) or np.inf)
        rounded = float(f"{weight:.{_THRESHOLD_DIGITS}g}")
        return rounded if 0 < rounded != 1 else 0.0

    def _fit_threshold(self, form: _Form, value: float) -> float:
        """Return the threshold of two digits that is nearest to the one that gives a value.

        0 if none gives it. The loss changes in one direction with the threshold: Huber's grows,
        smooth L1 falls.
        """
        low, high = _MIN_THRESHOLD, _MAX_THRESHOLD
        sign = 1.0 if form.kind == "huber_loss" else -1.0
        for threshold, direction in ((low, -1.0), (high, 1.0)):
            rest = self.compute(replace(form, threshold=threshold)) - value
            if sign * direction * rest < 0:
                return 0.0
        for _ in range(_BISECTIONS):
            middle = float(np.sqrt(low * high))
            is_above = sign * (self.compute(replace(form, threshold=middle)) - value) > 0
            low, high = (low, middle) if is_above else (middle, high)
        return float(f"{np.sqrt(low * high):.{_THRESHOLD_DIGITS}g}")


def suggest_other_loss_kind(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another loss of the same tensors, another threshold of it, or another reduction."""
    if not case.is_forward_value or case.faithful.size != 1:
        return
    own_value, faulty_value = (
        float(array.reshape(-1)[0]) for array in (case.faithful, case.faulty)
    )
    for tensors in _list_tensors(case):
        own_forms = _find_forms(tensors, own_value, case.limit)
        other_forms = _find_forms(tensors, faulty_value, case.limit)
        for own_form, form in _list_changes(own_forms, other_forms):
            yield Candidate(
                np.full(case.faithful.shape, tensors.compute(form)),
                form.describe(),
                f"has {own_form.describe()}",
                unchanged=np.full(case.faithful.shape, tensors.compute(own_form)),
                cause=_name_cause(form, own_form),
            )


def _list_changes(own_forms: list[_Form], forms: list[_Form]) -> list[tuple[_Form, _Form]]:
    """Return (own form, other form) that differ in one field, or in the kind and its threshold.

    Some forms are equal: smooth L1 with beta 1 and Huber with delta 1. So if two of one kind
    explain the values, the kind did not change.
    """
    pairs = [(own_form, form) for own_form in own_forms for form in forms]
    of_one_kind = []
    for own_form, form in pairs:
        names = ("reduction", "threshold", "positive_weight", "is_broadcast")
        n_changes = sum(getattr(form, name) != getattr(own_form, name) for name in names)
        if own_form.kind == form.kind and n_changes <= 1:
            of_one_kind.append((own_form, form))
    return of_one_kind or [
        (own_form, form)
        for own_form, form in pairs
        if replace(own_form, kind=form.kind, threshold=form.threshold) == form
    ]


def _name_cause(form: _Form, own_form: _Form) -> str:
    if form.kind != own_form.kind:
        return "loss-kind"
    if form.is_broadcast != own_form.is_broadcast:
        return "loss-target"
    if form.positive_weight != own_form.positive_weight:
        return "loss-weight"
    return "loss-reduction" if form.reduction != own_form.reduction else "loss-threshold"


def _find_forms(tensors: _Tensors, value: float, limit: float) -> list[_Form]:
    """Return the forms that give a value, those with a fitted number within rounding of it."""
    expected = np.asarray(value)
    forms = []
    for form in tensors.list_forms(value):
        is_fitted = form.threshold or form.positive_weight != 1
        residual = compute_residual(np.asarray(tensors.compute(form)), expected)
        if residual <= (min(limit, _MAX_FITTED_RESIDUAL) if is_fitted else limit):
            forms.append(form)
    return forms


def _list_tensors(case: FaultCase) -> Iterator[_Tensors]:
    """Yield pairs of different agreeing tensors of one size, in both orders.

    Most losses are the same in both, but the target of a binary cross-entropy is the second one.
    """
    operands: list[Operand] = []
    for operand in case.list_shared_operands():
        is_tensor = int(np.prod(operand.shape)) >= _MIN_ELEMENTS and not operand.parameter
        if is_tensor and operand.agrees and operand.is_floating:
            operands.append(operand)
    operands = operands[:_MAX_OPERANDS]
    for prediction in operands:
        for target in operands:
            if target is prediction or target.array.size != prediction.array.size:
                continue
            array = target.array
            yield _Tensors(prediction.array.reshape(array.shape), array)


HYPOTHESES = (Hypothesis("loss-kind", suggest_other_loss_kind),)
