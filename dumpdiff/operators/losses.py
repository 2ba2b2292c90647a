"""Losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings
from .softmax import log_softmax

_IGNORED = -100  # label that does not count, the default of both frameworks


def token_losses(logits: AnyArray, labels: AnyArray) -> Floats:
    """-log softmax(logits)[label] per token; logits (tokens, vocabulary), labels (tokens,); 0 for ignored ones."""
    known = (labels >= 0) & (labels < logits.shape[-1])
    chosen = np.take_along_axis(
        log_softmax(logits), np.where(known, labels, 0)[:, None].astype(np.int64), axis=-1
    )
    result: Floats = np.where(known, -chosen[:, 0], 0.0)
    return result


def cross_entropy(logits: AnyArray, labels: AnyArray) -> Floats:
    """The mean over the labels that count."""
    count = max(1, int(np.sum((labels >= 0) & (labels < logits.shape[-1]))))
    return np.asarray(token_losses(logits, labels).sum() / count)


def entropy(call: Call) -> Readings:
    """Cross-entropy of logits against class labels: mean, sum, or per token, whichever has the recorded shape."""
    if len(call.tensors) < 2 or call.tensors[1].dtype.kind not in "iu" or call.tensors[0].ndim < 2:
        return
    logits, labels = call.tensors[:2]
    if labels.size * logits.shape[-1] != logits.size:
        return
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    each = token_losses(logits, labels)
    if call.shape is not None and int(np.prod(call.shape)) == each.size > 1:
        yield "per token", each.reshape(call.shape)
        return
    yield "mean", cross_entropy(logits, labels)
    yield "sum", np.asarray(each.sum())


def likelihood(call: Call) -> Readings:
    """nll_loss: minus the mean of the chosen logarithms."""
    if len(call.tensors) >= 2 and call.tensors[1].dtype.kind in "iu" and call.tensors[0].ndim == 2:
        logs, labels = call.tensors[0], call.tensors[1].reshape(-1)
        chosen = -logs[np.arange(len(labels)), np.clip(labels, 0, logs.shape[1] - 1)]
        yield "mean", np.asarray(chosen[labels != _IGNORED].mean())
        yield "sum", np.asarray(chosen[labels != _IGNORED].sum())


def distance(call: Call) -> Readings:
    """mse_loss and l1_loss: mean or sum."""
    if len(call.tensors) >= 2:
        gap = call.tensors[0] - call.tensors[1]
        each = gap * gap if call.kind == "mse_loss" else np.abs(gap)
        yield "mean", np.asarray(each.mean())
        yield "sum", np.asarray(each.sum())


TABLE: Mapping[str, Callable[[Call], Readings]] = {
    "cross_entropy": entropy,
    "nll_loss": likelihood,
    "mse_loss": distance,
    "l1_loss": distance,
}
