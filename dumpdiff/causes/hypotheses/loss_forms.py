"""A cross-entropy as a whole: which labels, which tokens, which mean, how much smoothing.

Each side's loss is described by itself, from logits and labels that both sides have; then the two
descriptions are compared. So it does not matter how either side wrote the loss down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from ...model.arrays import AnyArray
from ...model.trace import BACKWARD
from ...operators.losses import compute_token_losses
from ...operators.softmax import log_softmax
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor
from .losses import MAX_SMOOTHING, has_several_losses

#: Positions by which labels may be shifted.
_SHIFTS = (0, 1, -1)
#: Tokens and classes beyond which forms are not tried.
_MAX_ELEMENTS = 1 << 24
#: Fewest tokens whose labels or weights are read from a gradient, and the share of labels that must
#: be those of the neighbors: at the ends of rows others come in.
_MIN_TOKENS, _MIN_SHARE = 6, 0.7
#: Relative difference of weights that are equal.
_EQUAL_WEIGHTS = 1e-3
#: Losses that take a weight for each class, and weights that a sentence lists.
_WEIGHTED_LOSSES, _MAX_LISTED = ("cross_entropy", "nll_loss"), 8
#: Times the noise by which the smallest step of a smoothing must change a loss.
_CLEAR_STEPS = 50
#: Decimals of a label smoothing, as people choose it.
_SMOOTHING_DECIMALS = 2


@dataclass(frozen=True)
class _Form:
    """How a cross-entropy becomes one number."""

    labels: str = "its labels"  #: which tensor of labels
    shift: int = 0  #: of the labels
    #: 'labeled' (labels that are not negative), 'all', or the label that does not count
    tokens: str = "labeled"
    #: mean, sum, sum divided by a number, or the mean of the means of each sequence
    reduction: str = "mean"
    is_weighted: bool = False  #: classes count by their weights
    smoothing: float = 0.0
    #: the smoothed share is divided among the other classes, not among all: of C classes each of
    #: them gets e / (C - 1), as in losses of MindSpore's model zoo
    is_of_others: bool = False

    def describe(self, name: str, count: int) -> str:
        """Return a field in words; ``count``: tokens that count."""
        shares = ", shared by all classes but the label's" if self.is_of_others else ""
        texts = {
            "labels": f"a loss against {self.labels}",
            "shift": f"labels shifted by {self.shift}",
            "tokens": f"a loss of {count} tokens",
            "reduction": f"the {self.reduction}",
            "is_weighted": "class weights" if self.is_weighted else "no class weights",
            "smoothing": f"label smoothing = {self.smoothing:g}{shares}",
        }
        return texts[name]


#: Tokens that count: all but one at the end of each sequence, with the number of sequences behind.
_WITHOUT_ENDS = "without ends of "
_CAUSES = {
    "labels": "loss-target",
    "shift": "label-shift",
    "tokens": "ignore-index",
    "reduction": "loss-reduction",
    "is_weighted": "loss-weight",
    "smoothing": "label-smoothing",
}


@dataclass(frozen=True, eq=False)
class _CrossEntropy:
    """Logits (tokens, classes) with all that may make a loss of them."""

    logits: AnyArray
    labels: Mapping[str, AnyArray]  #: name -> (tokens,), the usual ones first
    class_weights: AnyArray | None
    #: into how many sequences of one length the tokens may be divided
    sequence_counts: tuple[int, ...] = ()

    def list_forms(self) -> Iterator[_Form]:
        """Yield the forms without label smoothing, the usual ones first."""
        labels = next(iter(self.labels))
        for is_weighted in (False, True)[: 1 + (self.class_weights is not None)]:
            for tokens in self._list_token_choices(labels):
                for reduction in self._list_reductions():
                    for shift in _SHIFTS:
                        yield _Form(labels, shift, tokens, reduction, is_weighted)

    def vary(self, form: _Form) -> Iterator[_Form]:
        """Yield the forms that differ from one in a single field, but for label smoothing."""
        for other in self.list_forms():
            names = ("shift", "tokens", "reduction", "is_weighted")
            n_changed = sum(getattr(form, name) != getattr(other, name) for name in names)
            if n_changed == 1:
                yield replace(other, labels=form.labels, smoothing=form.smoothing)
        for name in self.labels:
            if name != form.labels:
                yield replace(form, labels=name)
        for n_sequences in self.sequence_counts:
            for shift in _SHIFTS[1:]:
                yield replace(form, shift=shift, tokens=f"{_WITHOUT_ENDS}{n_sequences}")

    def _list_token_choices(self, name: str) -> list[str]:
        labels = self.labels[name]
        choices = ["labeled", "all"] if (labels < 0).any() else ["labeled"]
        values, counts = np.unique(labels[labels >= 0], return_counts=True)
        if len(values) > 2:
            ignored = {int(values[0]), int(values[np.argmax(counts)])}
            choices += [str(value) for value in sorted(ignored)]
        return choices

    def _list_reductions(self) -> list[str]:
        n_tokens = len(self.logits)
        reductions = ["mean", "sum", f"sum divided by {n_tokens}"]
        for count in self.sequence_counts:
            reductions += [f"sum divided by {count}", f"mean of the means of {count} sequences"]
        return reductions

    def compute(self, form: _Form) -> tuple[float, float, int]:
        """Return (loss of the labels, loss of equal shares of all classes, tokens that count).

        A loss with label smoothing e is (1 - e) times the first plus e times the second.
        """
        labels = np.roll(self.labels[form.labels], form.shift)
        is_counted = labels >= 0
        if form.tokens == "all":
            is_counted = np.ones_like(is_counted)
        elif form.tokens.startswith(_WITHOUT_ENDS):
            n_sequences = int(form.tokens.removeprefix(_WITHOUT_ENDS))
            end = 0 if form.shift > 0 else -1
            is_counted = is_counted.copy()
            is_counted.reshape(n_sequences, -1)[:, end] = False
        elif form.tokens != "labeled":
            is_counted &= labels != int(form.tokens)
        used_labels = np.maximum(labels, 0)
        n_classes = self.logits.shape[-1]
        weights: AnyArray = np.ones(n_classes)
        if form.is_weighted and self.class_weights is not None:
            weights = self.class_weights
        token_weights = weights[used_labels] * is_counted
        hard_losses = compute_token_losses(self.logits, used_labels) * token_weights
        uniform_losses = -(self._log_probabilities * weights).mean(axis=-1) * is_counted
        hard, uniform = (
            _reduce_losses(losses, token_weights, form.reduction)
            for losses in (hard_losses, uniform_losses)
        )
        return hard, uniform, int(is_counted.sum())

    @cached_property
    def _log_probabilities(self) -> AnyArray:
        return log_softmax(self.logits)


def _reduce_losses(losses: AnyArray, weights: AnyArray, reduction: str) -> float:
    """Return the losses of the tokens as one number; a reduction's only number is its divisor."""
    numbers = [int(word) for word in reduction.split() if word.isdecimal()]
    if reduction == "sum":
        return float(losses.sum())
    if reduction == "mean":
        return float(losses.sum()) / (float(weights.sum()) or 1.0)
    if reduction.startswith("sum"):
        return float(losses.sum()) / numbers[0]
    sums, weight_sums = (array.reshape(numbers[0], -1).sum(axis=1) for array in (losses, weights))
    return float(np.mean(sums / np.where(weight_sums == 0, 1.0, weight_sums)))


def suggest_other_form(case: FaultCase) -> Iterator[Candidate]:
    """Suggest one loss of the same logits with another field of its form."""
    if not case.is_forward_value or case.faithful.size != 1:
        return
    if has_several_losses(case):
        return
    for loss in _list_losses(case):
        form = _find_form(loss, case)
        if form is None:
            continue
        unchanged, own_count = _compute_loss(loss, form)
        for other in (*_smooth_otherwise(loss, form, case), *loss.vary(form)):
            predicted, count = _compute_loss(loss, other)
            name = _find_changed_field(form, other)
            if not name:
                continue
            cause, shown = _CAUSES[name], other
            if name == "labels":
                cause, shift = _name_other_labels(
                    loss.labels[form.labels], loss.labels[other.labels]
                )
                if shift:  # the run holds the shifted labels, too
                    name, shown = "shift", replace(form, shift=shift)
            yield Candidate(
                np.full(case.faithful.shape, predicted),
                shown.describe(name, count),
                f"has {form.describe(name, own_count)}",
                unchanged=np.full(case.faithful.shape, unchanged),
                cause=cause,
            )
        return


def _find_changed_field(form: _Form, other: _Form) -> str:
    """Return the one field in which two forms differ, '' if they differ in none, or in several.

    The ends of sequences have no label if the labels are shifted, and shares belong to a smoothing.
    """
    names = {
        item.name for item in fields(_Form) if getattr(form, item.name) != getattr(other, item.name)
    }
    if other.tokens.startswith(_WITHOUT_ENDS) and other.shift:
        names.discard("tokens")
    if "smoothing" in names or form.smoothing:
        names = {"smoothing" if name == "is_of_others" else name for name in names}
    return names.pop() if len(names) == 1 else ""


def _list_losses(case: FaultCase) -> Iterator[_CrossEntropy]:
    """Yield the logits that both sides have, with labels and class weights."""
    operands = [operand for operand in case.list_shared_operands() if operand.shape]
    for label_operand in operands:
        labels = label_operand.array
        if labels.dtype.kind not in "iu" or not labels.size:
            continue
        for logit_operand in operands:
            if int(np.prod(logit_operand.shape)) > _MAX_ELEMENTS or not logit_operand.is_floating:
                continue
            logits = _arrange_logits(logit_operand.array, labels)
            if logits is None:
                continue
            n_classes = logits.shape[-1]
            own_labels = _read_labels(labels, n_classes)
            if own_labels is None:
                continue
            all_labels = {"its labels": own_labels}
            for operand in case.find_given_values(labels.size):
                array = _read_labels(operand.array, n_classes)
                if array is None:
                    continue
                if not any(np.array_equal(array, known) for known in all_labels.values()):
                    all_labels[operand.name] = array
            constants = case.find_given_values(n_classes)
            class_weights = _find_class_weights(constants, n_classes)
            counts = _list_sequence_counts(operands, len(own_labels))
            yield _CrossEntropy(logits, all_labels, class_weights, counts)


def _list_sequence_counts(operands: Sequence[Operand], n_tokens: int) -> tuple[int, ...]:
    """Return the first lengths of tensors (sequences, tokens, ...) that hold all tokens."""
    counts = {
        operand.shape[0]
        for operand in operands
        if len(operand.shape) > 1 and operand.shape[0] * operand.shape[1] == n_tokens
    }
    return tuple(sorted(counts - {1, n_tokens}))


def _arrange_logits(array: AnyArray, labels: AnyArray) -> AnyArray | None:
    """Return logits as (tokens, classes); None if they are not of these labels.

    Classes are the last axis, or axis 1 of images: (batch, classes, ...) for labels (batch, ...).
    """
    n_classes, remainder = divmod(array.size, labels.size)
    if array.ndim < 2 or remainder or n_classes < 2:
        return None
    if array.ndim > 2 and (array.shape[0], *array.shape[2:]) == labels.shape:
        return np.moveaxis(array, 1, -1).reshape(-1, n_classes)
    return array.reshape(-1, n_classes) if array.shape[-1] == n_classes else None


def _read_labels(array: AnyArray, n_classes: int) -> AnyArray | None:
    """Return labels as a flat array, in which those that do not count are negative.

    Segmentation marks pixels that do not count by one number that is no class, as 255. None for
    other whole numbers, and for an array that is none.
    """
    if array.dtype.kind not in "iu":
        return None
    labels: AnyArray = array.reshape(-1).astype(np.int64)
    is_class = labels < n_classes
    if len(np.unique(labels[~is_class])) > 1 or not is_class.any():
        return None
    return np.where(is_class, labels, -1)


def _find_class_weights(operands: Sequence[Operand], n_classes: int) -> AnyArray | None:
    """Return the vector of one weight for each class; None if there is none."""
    for operand in operands:
        if operand.shape != (n_classes,) or operand.parameter or not operand.is_floating:
            continue
        is_constant = not operand.kind and operand.array.min() >= 0
        if is_constant and np.ptp(operand.array) > 0:
            return operand.array
    return None


def _find_form(loss: _CrossEntropy, case: FaultCase) -> _Form | None:
    """Return the first form that gives the faithful side's value; None if none does."""
    forms = list(loss.list_forms())
    smoothed_forms = [
        replace(form, smoothing=number, is_of_others=is_of_others)
        for form in forms
        if not form.shift
        for number in _list_smoothings(case)
        for is_of_others in (False, True)
    ]
    free_forms = [_smooth(loss, form, case.faithful) for form in forms if not form.shift]
    for form in (*forms, *smoothed_forms, *free_forms):
        value, _ = _compute_loss(loss, form)
        if compute_residual(np.asarray(value), case.faithful.reshape(())) <= case.limit:
            return form
    return None


def _list_smoothings(case: FaultCase) -> list[float]:
    """Return the numbers that the records hold and that may be a label smoothing."""
    numbers = {round(number, 6) for number in (*case.numbers, *case.faulty_numbers)}
    return sorted(number for number in numbers if 0 < number <= MAX_SMOOTHING)


def _smooth(
    loss: _CrossEntropy, form: _Form, value: AnyArray, *, is_of_others: bool = False
) -> _Form:
    """Return the form with the label smoothing that comes nearest to a value."""
    hard, uniform, _ = loss.compute(form)
    share = (float(value.reshape(-1)[0]) - hard) / ((uniform - hard) or 1.0)
    n_classes = loss.logits.shape[-1]
    share *= (n_classes - 1) / n_classes if is_of_others else 1
    rounded = round(share, _SMOOTHING_DECIMALS) + 0.0  # -0 becomes 0
    smoothing = rounded if 0 <= rounded <= MAX_SMOOTHING else 0.0
    return replace(form, smoothing=smoothing, is_of_others=is_of_others and smoothing > 0)


def _smooth_otherwise(loss: _CrossEntropy, form: _Form, case: FaultCase) -> list[_Form]:
    """Return the form with another smoothing, and with its own shared otherwise.

    A smoothing that is free, and shared in either way, explains too many values, unless a hundredth
    of it changes the loss by much more than noise.
    """
    hard, uniform, _ = loss.compute(form)
    noise = case.limit * abs(float(case.faulty.reshape(-1)[0]))
    is_clear = abs(uniform - hard) > _CLEAR_STEPS * noise * 10**_SMOOTHING_DECIMALS
    forms = [_smooth(loss, form, case.faulty)]
    if form.smoothing:
        forms.append(replace(form, is_of_others=not form.is_of_others))
    elif is_clear:
        forms.append(_smooth(loss, form, case.faulty, is_of_others=True))
    return forms


def _compute_loss(loss: _CrossEntropy, form: _Form) -> tuple[float, int]:
    """Return (value of a form, tokens that count)."""
    hard, uniform, count = loss.compute(form)
    n_classes = loss.logits.shape[-1]
    share = form.smoothing * (n_classes / (n_classes - 1) if form.is_of_others else 1)
    return (1 - share) * hard + share * uniform, count


def _name_other_labels(labels: AnyArray, other: AnyArray) -> tuple[str, int]:
    """Return the cause of a loss against other labels, and by how much they are shifted, else 0."""
    is_labeled = (labels >= 0) & (other >= 0)
    has_ignored = not is_labeled.all()
    if has_ignored and np.array_equal(labels[is_labeled], other[is_labeled]):
        return "ignore-index", 0
    for shift in _SHIFTS:
        if shift and np.mean(np.roll(labels, shift) == other) >= _MIN_SHARE:
            return "label-shift", shift
    return "loss-target", 0


def suggest_other_class_weights(case: FaultCase) -> Iterator[Candidate]:
    """Suggest other weights of the classes: a vector of a cross-entropy that nothing computed."""
    if not case.is_source or case.is_discrete or case.faithful.ndim != 1:
        return
    for kind, operands in case.consumers:
        if kind not in _WEIGHTED_LOSSES:
            continue
        has_classes = any(
            operand.is_floating and case.faithful.size in (operand.shape[-1:] + operand.shape[1:2])
            for operand in operands
            if len(operand.shape) > 1
        )
        if has_classes and min(case.faithful.min(), case.faulty.min()) >= 0:
            yield Candidate(
                case.faulty.copy(),
                f"class weights {_format_numbers(case.faulty)}",
                f"has {_format_numbers(case.faithful)}",
                unchanged=case.faithful,
            )
            return


def _format_numbers(array: AnyArray) -> str:
    numbers = [f"{number:.4g}" for number in array.reshape(-1)[:_MAX_LISTED]]
    return ", ".join([*numbers, "..."] if array.size > _MAX_LISTED else numbers)


def suggest_shifted_labels_in_gradient(case: FaultCase) -> Iterator[Candidate]:
    """Suggest shifted labels: in a row of the gradient, the label's class alone is negative."""
    rows = _read_gradients(case)
    if rows is None:
        return
    faithful, faulty = rows
    is_counted, is_faulty_counted = np.any(faithful != 0, axis=1), np.any(faulty != 0, axis=1)
    labels, faulty_labels = np.argmin(faithful, axis=1), np.argmin(faulty, axis=1)
    n_counted, n_faulty = int(is_counted.sum()), int(is_faulty_counted.sum())
    for shift in (1, -1, 2, -2):
        is_shared = is_faulty_counted & np.roll(is_counted, shift)
        is_equal = np.roll(labels, shift)[is_shared] == faulty_labels[is_shared]
        if is_shared.sum() < _MIN_TOKENS or is_equal.mean() < _MIN_SHARE:
            continue
        is_known = is_counted & is_faulty_counted
        one_hots = [np.eye(faithful.shape[1])[side] for side in (labels, faulty_labels)]
        direction = (one_hots[0] - one_hots[1])[is_known]
        difference = n_faulty * faulty[is_known] - n_counted * faithful[is_known]
        share = fit_factor(direction, difference)
        predicted = faulty.copy()
        predicted[is_known] = (n_counted * faithful[is_known] + share * direction) / n_faulty
        yield Candidate(
            predicted.reshape(case.faithful.shape),
            f"labels shifted by {shift}",
            parameters={"shift": float(shift)},
            unchanged=case.faithful,
        )


def suggest_token_weights(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that tokens count by other weights: each row of the gradient has its own factor."""
    rows = _read_gradients(case)
    if rows is None:
        return
    faithful, faulty = rows
    energies = np.maximum((faithful**2).sum(axis=1), 1e-30)
    factors = (faithful * faulty).sum(axis=1) / energies
    counted_factors = factors[np.any(faithful != 0, axis=1) & np.any(faulty != 0, axis=1)]
    if len(counted_factors) < _MIN_TOKENS:
        return
    low, high = float(counted_factors.min()), float(counted_factors.max())
    if high - low <= _EQUAL_WEIGHTS * abs(high):
        return  # one factor of the whole loss
    yield Candidate(
        (factors[:, None] * faithful).reshape(case.faithful.shape),
        f"a loss of tokens with weights {low:.4g} to {high:.4g} times the {case.faithful_side}'s",
        unchanged=case.faithful,
    )


def _read_gradients(case: FaultCase) -> tuple[AnyArray, AnyArray] | None:
    """Return both gradients of the logits as (tokens, classes); None if the value is none.

    The classes of such a gradient sum to zero.
    """
    if case.phase != BACKWARD or not case.is_near_loss or case.faithful.ndim < 2:
        return None
    n_classes = case.faithful.shape[-1]
    faithful, faulty = (array.reshape(-1, n_classes) for array in (case.faithful, case.faulty))
    scale = float(np.abs(faithful).max()) or 1.0
    if len(faithful) < _MIN_TOKENS or np.abs(faithful.sum(axis=1)).max() > 1e-4 * scale:
        return None
    return faithful, faulty


HYPOTHESES = (
    Hypothesis("loss-reduction", suggest_other_form),
    Hypothesis("loss-weight", suggest_other_class_weights),
    Hypothesis("label-shift", suggest_shifted_labels_in_gradient),
    Hypothesis("loss-weight", suggest_token_weights),
)
