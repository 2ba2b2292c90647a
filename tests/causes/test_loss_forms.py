"""One cross-entropy in several forms: labels, tokens, mean and smoothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.model.arrays import AnyArray, Floats
from dumpdiff.operators.losses import compute_token_losses
from dumpdiff.operators.softmax import log_softmax, softmax

from .fault_cases import make_fault_case, make_operands

RNG = np.random.default_rng(5)
LOGITS = RNG.standard_normal((16, 12)).astype(np.float32).astype(np.float64)
LABELS = RNG.integers(0, 12, 16)
LABELS[[6, 7, 15]] = -100
IS_COUNTED = LABELS >= 0


def compute_loss(labels: AnyArray, smoothing: float = 0.0) -> Floats:
    """Return the losses of the tokens."""
    uniform = -log_softmax(LOGITS).mean(axis=-1)
    losses = (1 - smoothing) * compute_token_losses(LOGITS, labels) + smoothing * uniform
    return np.where(labels >= 0, losses, 0.0)


@pytest.mark.parametrize(("faulty", "cause", "sentence"), [
    (compute_loss(LABELS, 0.1).sum() / 16, "loss-reduction",
     "the sum divided by 16; the reference has the mean"),
    (compute_loss(LABELS, 0.2).sum() / 13, "label-smoothing",
     "label smoothing = 0.2; the reference has 0.1"),
    (compute_loss(np.maximum(LABELS, 0), 0.1).sum() / 16, "ignore-index",
     "a loss of 16 tokens; the reference has a loss of 13 tokens"),
    (compute_loss(np.roll(LABELS, -1), 0.1).sum() / 13, "label-shift",
     "labels shifted by -1; the reference has labels shifted by 0"),
])  # fmt: skip
def test_one_field_of_the_loss_differs(faulty: float, cause: str, sentence: str) -> None:
    faithful = compute_loss(LABELS, 0.1).sum() / 13
    case = make_fault_case(np.asarray(faulty), np.asarray(faithful), {}, scope="loss")
    case = replace(case, operands=make_operands({"logits": LOGITS, "labels": LABELS}))
    causes = search_causes([case], HYPOTHESES).causes
    assert causes[0].name == cause
    assert sentence in causes[0].text


def test_labels_may_be_shares_of_classes() -> None:
    """As where samples are mixed, and smoothed once more."""
    shares = RNG.random((16, 12))
    shares /= shares.sum(axis=-1, keepdims=True)
    log_shares = log_softmax(LOGITS)
    losses, uniform = -(shares * log_shares).sum(axis=-1), -log_shares.mean(axis=-1)
    faulty = (0.9 * losses + 0.1 * uniform).mean()
    case = make_fault_case(np.asarray(faulty), np.asarray(losses.mean()), {}, scope="loss")
    case = replace(case, operands=make_operands({"logits": LOGITS, "shares": shares}))
    causes = search_causes([case], HYPOTHESES).causes
    assert causes[0].name == "label-smoothing"
    assert "label smoothing = 0.1; the reference has 0" in causes[0].text


CLASS_WEIGHTS = np.linspace(0.5, 1.5, 12)
OTHER_LABELS = RNG.integers(0, 12, 16)


def compute_weighted_loss(labels: AnyArray) -> float:
    weights = CLASS_WEIGHTS[np.maximum(labels, 0)] * (labels >= 0)
    return float((compute_token_losses(LOGITS, np.maximum(labels, 0)) * weights).sum()) / float(
        weights.sum()
    )


@pytest.mark.parametrize(("faulty", "cause", "sentence"), [
    (compute_loss(LABELS).sum() / 13, "loss-weight",
     "no class weights; the reference has class weights"),
    (compute_weighted_loss(OTHER_LABELS), "loss-target",
     "a loss against others; the reference has a loss against its labels"),
])  # fmt: skip
def test_a_loss_with_class_weights_differs_in_one_thing(
    faulty: float, cause: str, sentence: str
) -> None:
    given = {12: {"weights": CLASS_WEIGHTS}, 16: {"others": OTHER_LABELS, "labels": LABELS}}
    case = make_fault_case(
        np.asarray(faulty), np.asarray(compute_weighted_loss(LABELS)), {}, scope="loss"
    )
    case = replace(
        case,
        operands=make_operands({"logits": LOGITS, "labels": LABELS}),
        find_given_values=lambda size: make_operands(given.get(size, {})),
    )
    causes = search_causes([case], HYPOTHESES).causes
    assert causes[0].name == cause
    assert sentence in causes[0].text


def compute_gradient(labels: AnyArray, weights: AnyArray) -> Floats:
    """Return the gradient of the logits of a weighted loss."""
    one_hot = np.eye(12)[np.maximum(labels, 0)]
    return np.asarray((softmax(LOGITS) - one_hot) * (weights * (labels >= 0))[:, None])


@pytest.mark.parametrize(("faulty", "cause", "sentence"), [
    (compute_gradient(np.roll(LABELS, 1), np.full(16, 1 / 13)), "label-shift",
     "labels shifted by 1"),
    (compute_gradient(LABELS, np.linspace(0.5, 1.5, 16) / 13), "loss-weight",
     "a loss of tokens with weights 0.5 to 1.433 times the reference's"),
])  # fmt: skip
def test_the_gradient_shows_labels_and_weights(faulty: AnyArray, cause: str, sentence: str) -> None:
    faithful = compute_gradient(LABELS, np.full(16, 1 / 13))
    case = make_fault_case(faulty, faithful, {}, phase="backward", is_near_loss=True)
    causes = search_causes([case], HYPOTHESES).causes
    assert causes[0].name == cause
    assert sentence in causes[0].text
