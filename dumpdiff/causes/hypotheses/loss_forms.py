"""A cross-entropy as a whole: which labels, which tokens, which mean, how much smoothing.

Each side's loss is described by itself, from logits and labels that both sides have; then the two
descriptions are compared. So it does not matter how either side wrote the loss down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD
from ...operators.losses import compute_token_losses
from ...operators.softmax import log_softmax
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor

#: Positions by which labels may be shifted.
_SHIFTS = (0, 1, -1)
#: Tokens and classes beyond which forms are not tried.
_MAX_ELEMENTS = 1 << 24
#: Fewest tokens whose labels or weights are read from a gradient, and the share of labels that must
#: be those of the neighbors: at the ends of rows others come in.
_MIN_TOKENS, _MIN_SHARE = 6, 0.7
#: Relative difference of weights that are equal.
_EQUAL_WEIGHTS = 1e-3
#: Decimals of a label smoothing, as people choose it.
_SMOOTHING_DECIMALS = 2


@dataclass(frozen=True)
class _Form:
    """How a cross-entropy becomes one number."""

    shift: int  #: of the labels
    tokens: str  #: 'labeled' (labels that are not negative) or 'all' (negative ones become 0)
    reduction: str  #: mean, sum, or mean over all tokens
    smoothing: float

    def describe(self, changed: Sequence[str], count: int) -> str:
        """Return the named fields in words; ``count``: tokens that count."""
        texts = {
            "shift": f"labels shifted by {self.shift}",
            "tokens": f"a loss of {count} tokens",
            "reduction": f"the {self.reduction}",
            "smoothing": f"label smoothing = {self.smoothing:g}",
        }
        return " and ".join(texts[name] for name in changed)


_CAUSES = {
    "shift": "label-shift",
    "tokens": "ignore-index",
    "reduction": "loss-reduction",
    "smoothing": "label-smoothing",
}


@dataclass(frozen=True, eq=False)
class _Loss:
    """A form with its value and the number of tokens that count."""

    form: _Form
    value: Floats
    count: int


def suggest_other_form(case: FaultCase) -> Iterator[Candidate]:
    """Suggest one loss of the same logits and labels with another field of its form."""
    if not case.is_forward_value or case.faithful.size != 1:
        return
    for logits, labels in _list_logits_and_labels(case):
        faithful_losses = list(_match_forms(logits, labels, case.faithful, case.limit))
        if not faithful_losses:
            continue
        loss = faithful_losses[0]
        for faulty_loss in _match_forms(logits, labels, case.faulty, case.limit):
            changed = [
                item.name
                for item in fields(_Form)
                if getattr(loss.form, item.name) != getattr(faulty_loss.form, item.name)
            ]
            if len(changed) != 1:
                continue  # two differences explain many numbers by chance
            yield Candidate(
                faulty_loss.value.reshape(case.faithful.shape),
                faulty_loss.form.describe(changed, faulty_loss.count),
                f"has {loss.form.describe(changed, loss.count)}",
                unchanged=loss.value.reshape(case.faithful.shape),
                cause=_CAUSES[changed[0]],
            )
        return


def _list_logits_and_labels(case: FaultCase) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield (logits (tokens, classes), labels (tokens,)) that both sides have."""
    operands = [operand for operand in case.list_shared_operands() if operand.shape]
    for label_operand in operands:
        labels = label_operand.array
        if labels.dtype.kind not in "iu" or not labels.size:
            continue
        for logit_operand in operands:
            shape = logit_operand.shape
            n_elements = int(np.prod(shape))
            has_tokens = len(shape) > 1 and n_elements == labels.size * shape[-1]
            if not has_tokens or n_elements > _MAX_ELEMENTS or labels.max() >= shape[-1]:
                continue
            if logit_operand.is_floating:
                yield logit_operand.array.reshape(-1, shape[-1]), labels.reshape(-1)


def _match_forms(
    logits: AnyArray, labels: AnyArray, value: AnyArray, limit: float
) -> Iterator[_Loss]:
    """Yield the forms that give a value, the usual ones first."""
    uniform_losses = -log_softmax(logits).mean(axis=-1)
    for shift in _SHIFTS:
        shifted_labels = np.roll(labels, shift)
        for tokens in ("labeled", "all"):
            is_counted = shifted_labels >= 0
            if tokens == "all":
                if is_counted.all():
                    continue
                is_counted = np.ones_like(is_counted)
            hard_losses = compute_token_losses(logits, np.maximum(shifted_labels, 0)) * is_counted
            hard, uniform = hard_losses.sum(), (uniform_losses * is_counted).sum()
            count = max(1, int(is_counted.sum()))
            for reduction, divisor in (
                ("mean", count),
                ("sum", 1),
                (f"sum divided by {len(labels)}", len(labels)),
            ):
                smoothing = _fit_smoothing(hard / divisor, uniform / divisor, value)
                result = ((1 - smoothing) * hard + smoothing * uniform) / divisor
                loss = np.asarray(result)
                if compute_residual(loss, value.reshape(())) <= limit:
                    yield _Loss(_Form(shift, tokens, reduction, smoothing), loss, count)


def _fit_smoothing(hard: float, uniform: float, value: AnyArray) -> float:
    """Return the smoothing of two decimals that is nearest to a value."""
    share = (float(value.reshape(-1)[0]) - hard) / ((uniform - hard) or 1.0)
    rounded_share = round(share, _SMOOTHING_DECIMALS) + 0.0  # -0 becomes 0
    return rounded_share if 0 <= rounded_share < 1 else 0.0


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
    Hypothesis("label-shift", suggest_shifted_labels_in_gradient),
    Hypothesis("loss-weight", suggest_token_weights),
)
