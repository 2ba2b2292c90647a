"""Losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats
from .call import Call, Interpretations
from .softmax import log_softmax

#: A label that does not count; the default of both frameworks.
_IGNORED_LABEL = -100
#: Share of the largest loss by which losses of float32 differ, and digits of a threshold of them.
_THRESHOLD_ERROR, _THRESHOLD_DIGITS = 1e-5, 6
#: Losses that are quadratic below a threshold, and its name; both frameworks take 1 by default.
THRESHOLD_NAMES: Mapping[str, str] = {"smooth_l1_loss": "beta", "huber_loss": "delta"}
DEFAULT_THRESHOLD = 1.0
#: The smallest logarithm of a probability in a binary cross-entropy.
_LEAST_LOGARITHM = -100.0


def compute_token_losses(logits: AnyArray, labels: AnyArray) -> Floats:
    """Return -log softmax(logits)[label] per token, 0 for labels outside the vocabulary.

    ``logits`` is (tokens, vocabulary), ``labels`` is (tokens,).
    """
    is_counted = _find_counted_labels(logits, labels)
    columns = np.where(is_counted, labels, 0)[:, None].astype(np.int64)
    log_probabilities = np.take_along_axis(log_softmax(logits), columns, axis=-1)
    result: Floats = np.where(is_counted, -log_probabilities[:, 0], 0.0)
    return result


def cross_entropy(logits: AnyArray, labels: AnyArray) -> Floats:
    """Return the mean loss over the labels that count."""
    count = max(1, int(np.sum(_find_counted_labels(logits, labels))))
    return np.asarray(compute_token_losses(logits, labels).sum() / count)


def _find_counted_labels(logits: AnyArray, labels: AnyArray) -> Flags:
    is_counted: Flags = (labels >= 0) & (labels < logits.shape[-1])
    return is_counted


def compute_cross_entropy(call: Call) -> Interpretations:
    """Compute the cross-entropy of logits against labels, or against shares of the classes.

    Classes are the last axis, or axis 1 of images. The result is the mean, the sum, or one loss for
    each label, whichever has the recorded shape. Weights of classes and an ignored label count.
    """
    if len(call.tensors) < 2:
        return
    logits, labels = call.tensors[:2]
    if labels.dtype.kind == "f":
        if labels.shape == logits.shape and logits.ndim > 1:
            losses = -np.sum(labels * log_softmax(logits), axis=-1)
            yield from _reduce_labels(call, losses, np.ones_like(losses))
        return
    if labels.dtype.kind not in "iu" or logits.ndim < 2:
        return
    for flat_logits in _list_flat_logits(logits, labels):
        losses, weights = _compute_weighted_losses(call, log_softmax(flat_logits), labels)
        yield from _reduce_labels(call, losses, weights)


def compute_nll_loss(call: Call) -> Interpretations:
    """Compute nll_loss: minus the mean of the log-probabilities at the labels."""
    if len(call.tensors) < 2:
        return
    log_probabilities, labels = call.tensors[:2]
    if labels.dtype.kind not in "iu" or log_probabilities.ndim < 2:
        return
    for flat in _list_flat_logits(log_probabilities, labels):
        yield from _reduce_labels(call, *_compute_weighted_losses(call, flat, labels))


def _list_flat_logits(logits: AnyArray, labels: AnyArray) -> list[AnyArray]:
    """Return the logits as (labels, classes), for each axis that may be the classes'."""
    flat = []
    if logits.ndim > 2 and labels.shape == (*logits.shape[:1], *logits.shape[2:]):
        flat.append(np.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1]))
    if labels.size * logits.shape[-1] == logits.size:
        flat.append(logits.reshape(-1, logits.shape[-1]))
    return flat


def _compute_weighted_losses(
    call: Call, log_probabilities: AnyArray, labels: AnyArray
) -> tuple[Floats, Floats]:
    """Return (labels,) the weighted loss of each, and its weight: 0 for what does not count.

    With label smoothing s the loss is (1 - s) w_y l_y + s / C sum_c w_c l_c, as in PyTorch.
    """
    n_classes = log_probabilities.shape[-1]
    flat_labels = labels.reshape(-1)
    ignored_label = call.get_number("ignore_index", default=_IGNORED_LABEL)
    is_counted = _find_counted_labels(log_probabilities, flat_labels)
    is_counted &= flat_labels != ignored_label
    rows, columns = np.arange(flat_labels.size), np.where(is_counted, flat_labels, 0)
    class_weights = call.keywords.get("weight", call.tensors[2] if len(call.tensors) > 2 else None)
    if class_weights is None or class_weights.shape != (n_classes,):
        class_weights = np.ones(n_classes)
    weights: Floats = np.where(is_counted, class_weights[columns], 0.0)
    losses = -weights * log_probabilities[rows, columns]
    smoothing = call.get_number("label_smoothing", default=0.0)
    if smoothing:
        of_all_classes = -(log_probabilities * class_weights).mean(axis=-1)
        losses = (1 - smoothing) * losses + smoothing * np.where(is_counted, of_all_classes, 0.0)
    return losses, weights


def _reduce_labels(call: Call, losses: Floats, weights: Floats) -> Interpretations:
    """Yield one loss for each label if the output has as many, else the mean and the sum.

    A weighted sum may also be divided by the number of the labels, or of those that count.
    """
    shape = call.output_shape
    if shape is not None and int(np.prod(shape)) == losses.size > 1:
        yield "per token", losses.reshape(shape)
        return
    yield "mean", np.asarray(losses.sum() / (weights.sum() or 1.0))
    yield "sum", np.asarray(losses.sum())
    counts = {"that count": int(np.count_nonzero(weights)), "there are": losses.size}
    for noun, count in counts.items():
        if count and count != weights.sum():
            yield f"the sum divided by the labels {noun}", np.asarray(losses.sum() / count)


def compute_distance_loss(call: Call) -> Interpretations:
    """Compute mse_loss or l1_loss: of each element if the output has as many, else mean and sum."""
    if len(call.tensors) < 2:
        return
    prediction, target = call.tensors[:2]
    losses = compute_element_losses(call.kind, prediction, target)
    if call.output_shape is not None and int(np.prod(call.output_shape)) == losses.size > 1:
        yield "by element", losses
        return
    yield "mean", np.asarray(losses.mean())
    yield "sum", np.asarray(losses.sum())


def compute_element_losses(
    kind: str, prediction: AnyArray, target: AnyArray, threshold: float = 1.0
) -> Floats:
    """Return the loss of each element, in the shape of both arrays.

    Kinds: mse_loss, l1_loss, smooth_l1_loss and huber_loss (quadratic below the threshold, which is
    PyTorch's beta or delta), bce_loss of probabilities, bce_with_logits of logits. Logarithms of
    probabilities are at least -100, as in both frameworks.
    """
    if kind in ("bce_loss", "bce_with_logits"):
        if kind == "bce_with_logits":
            log_p, log_not_p = -np.logaddexp(0, -prediction), -np.logaddexp(0, prediction)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                log_p = np.maximum(np.log(prediction), _LEAST_LOGARITHM)
                log_not_p = np.maximum(np.log1p(-prediction), _LEAST_LOGARITHM)
        losses: Floats = -(target * log_p + (1 - target) * log_not_p)
        return losses
    distance: Floats = np.abs(prediction - target)
    if kind == "l1_loss":
        return distance
    if kind == "mse_loss":
        return distance * distance
    quadratic = 0.5 * distance * distance
    linear = threshold * (distance - 0.5 * threshold)
    result: Floats = np.where(distance < threshold, quadratic, linear)
    return result / threshold if kind == "smooth_l1_loss" else result


def find_threshold(kind: str, distance: Floats, losses: Floats) -> float:
    """Return the threshold with which the losses of distances follow, 0 if none gives them.

    ``kind`` is smooth_l1_loss or huber_loss. The largest distance is beyond the threshold, or the
    losses are all quadratic: then smooth L1 still has the threshold as its divisor.
    """
    place = int(np.argmax(distance))
    length, loss = float(distance.flat[place]), float(losses.flat[place])
    with np.errstate(all="ignore"):
        if kind == "smooth_l1_loss":
            candidates = [2 * (length - loss), length * length / (2 * loss)]
        else:  # t length - t^2 / 2 = loss
            candidates = [length - np.sqrt(length * length - 2 * loss)]
    scale = float(np.abs(losses).max())
    for threshold in candidates:
        if not (np.isfinite(threshold) and threshold > 0):
            continue
        computed = compute_element_losses(kind, distance, np.zeros_like(distance), threshold)
        if np.abs(computed - losses).max() <= _THRESHOLD_ERROR * scale:
            return float(f"{threshold:.{_THRESHOLD_DIGITS}g}")
    return 0.0


def compute_binary_loss(call: Call) -> Interpretations:
    """Compute a binary cross-entropy of logits or of probabilities, with weights if there are any.

    Both kinds have one name; weights are of the elements, or of the positive ones (pos_weight).
    """
    if len(call.tensors) < 2:
        return
    prediction, target, *weights = call.tensors
    if prediction.shape != target.shape or prediction.dtype.kind != "f":
        return
    target = target.astype(np.float64)
    weight = call.keywords.get("weight", weights[0] if weights else np.ones(()))
    positive_weight = call.keywords.get("pos_weight", weights[1] if len(weights) > 1 else None)
    for kind, noun in (("bce_with_logits", "of logits"), ("bce_loss", "of probabilities")):
        if kind == "bce_loss" and not np.all((prediction >= 0) & (prediction <= 1)):
            continue
        losses = compute_element_losses(kind, prediction, target)
        if positive_weight is not None:
            losses = losses * (1 + target * (positive_weight - 1))
        yield from _reduce_elements(losses * weight, noun, call)
        if len(weights) == 1 and kind == "bce_with_logits":  # the other one was not recorded
            losses = losses * (1 + target * (weights[0] - 1))
            yield from _reduce_elements(losses, f"{noun} with weighted positives", call)


def compute_divergence(call: Call) -> Interpretations:
    """Compute kl_div of log-probabilities from target probabilities, or from their logarithms.

    A target is taken for logarithms if the record says so (log_target), or if it says nothing and
    some are negative. The sum divided by the rows is the reduction 'batchmean'.
    """
    if len(call.tensors) < 2 or call.tensors[0].shape != call.tensors[1].shape:
        return
    log_probabilities, target = call.tensors[:2]
    if target.dtype.kind != "f":
        return
    if call.get_number("log_target", default=float((target < 0).any())):
        probabilities, log_target = np.exp(target), target
    else:
        is_positive = target > 0
        probabilities, log_target = target, np.log(np.where(is_positive, target, 1.0))
    losses = probabilities * (log_target - log_probabilities)
    yield from _reduce_elements(losses, "divergence", call)
    if losses.ndim and call.output_shape == ():
        yield "divergence, by row", np.asarray(losses.sum() / max(1, losses.shape[0]))


def compute_threshold_loss(call: Call) -> Interpretations:
    """Compute smooth_l1_loss or huber_loss; without a recorded threshold it is 1."""
    if len(call.tensors) < 2 or call.tensors[0].shape != call.tensors[1].shape:
        return
    prediction, target = call.tensors[:2]
    threshold = call.get_number(*THRESHOLD_NAMES.values(), default=DEFAULT_THRESHOLD)
    losses = compute_element_losses(call.kind, prediction, target, threshold)
    yield from _reduce_elements(losses, "quadratic below a threshold", call)


def _reduce_elements(losses: Floats, noun: str, call: Call) -> Interpretations:
    """Yield one loss for each element if the output has as many, else their mean and their sum."""
    if call.output_shape is not None and int(np.prod(call.output_shape)) == losses.size > 1:
        yield f"{noun}, by element", losses
        return
    yield f"{noun}, mean", np.asarray(losses.mean())
    yield f"{noun}, sum", np.asarray(losses.sum())


#: Losses whose record omits what they compute: logits or probabilities, weights, a threshold, or
#: whether a target is a logarithm.
INCOMPLETE_FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "bce_loss": compute_binary_loss,
    "smooth_l1_loss": compute_threshold_loss,
    "huber_loss": compute_threshold_loss,
    "kl_div": compute_divergence,
}
FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "cross_entropy": compute_cross_entropy,
    "nll_loss": compute_nll_loss,
    "mse_loss": compute_distance_loss,
    "l1_loss": compute_distance_loss,
}
