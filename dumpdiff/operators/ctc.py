"""The connectionist temporal classification loss (CTC): labels without places in a sequence.

Graves et al., Connectionist Temporal Classification, ICML 2006, equations 6 to 8. It sums up the
probabilities of all paths that give the labels: a path has one class for each step, repeated
classes and the blank between two labels count once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from .call import Call, Interpretations


def compute_path_losses(
    log_probabilities: AnyArray, labels: Ints, n_steps: Ints, n_labels: Ints, blank: int
) -> Floats:
    """Return (sequences,) minus the logarithm of the probability of each sequence's labels.

    ``log_probabilities`` is (steps, sequences, classes), ``labels`` is (sequences, longest), and
    the others are (sequences,): how many steps and labels of each sequence count. Infinite if no
    path has the labels.
    """
    n_sequences, longest = labels.shape
    rows = np.arange(n_sequences)
    states = np.full((n_sequences, 2 * longest + 1), blank)
    states[:, 1::2] = labels
    # a path may leave out the blank between two labels that differ
    is_skipped = np.zeros(states.shape, dtype=bool)
    is_skipped[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    sums = np.full(states.shape, -np.inf)
    sums[:, 0] = log_probabilities[0, rows, blank]
    if longest:
        sums[:, 1] = log_probabilities[0, rows, states[:, 1]]
    for step in range(1, len(log_probabilities)):
        before = np.pad(sums, ((0, 0), (2, 0)), constant_values=-np.inf)
        skipped = np.where(is_skipped, before[:, :-2], -np.inf)
        new_sums = np.logaddexp(np.logaddexp(sums, before[:, 1:-1]), skipped)
        new_sums += log_probabilities[step, rows[:, None], states]
        sums = np.where((step < n_steps)[:, None], new_sums, sums)
    at_blank = sums[rows, 2 * n_labels]
    at_label = np.where(n_labels > 0, sums[rows, np.maximum(2 * n_labels - 1, 0)], -np.inf)
    losses: Floats = -np.logaddexp(at_blank, at_label)
    return losses


def compute_ctc_loss(call: Call) -> Interpretations:
    """Compute CTC of (steps, sequences, classes): of each sequence, or one number for all.

    The mean divides each loss by its number of labels, as both frameworks do.
    """
    if len(call.tensors) < 4:
        return
    log_probabilities, labels, n_steps, n_labels = call.tensors[:4]
    if any(array.dtype.kind not in "iu" for array in (labels, n_steps, n_labels)):
        return
    if n_steps.max(initial=0) > len(log_probabilities):
        return
    n_labels = n_labels.astype(np.int64).reshape(-1)
    padded_labels = _pad_labels(labels, n_labels)
    # not recorded: the first class, or the last one as in older operators
    blanks = [int(call.get_number("blank", default=0))]
    if "blank" not in call.keywords:
        blanks.append(log_probabilities.shape[-1] - 1)
    for blank in blanks:
        losses = compute_path_losses(
            log_probabilities, padded_labels, n_steps.reshape(-1), n_labels, blank
        )
        if call.get_number("zero_infinity", default=0):
            losses = np.where(np.isfinite(losses), losses, 0.0)
        if call.output_shape is not None and int(np.prod(call.output_shape)) == losses.size > 1:
            yield f"by sequence, blank {blank}", losses
            continue
        yield f"mean, blank {blank}", np.asarray((losses / np.maximum(n_labels, 1)).mean())
        yield f"sum, blank {blank}", np.asarray(losses.sum())


def _pad_labels(labels: AnyArray, n_labels: Ints) -> Ints:
    """Return (sequences, longest) labels, also if they were given one sequence after the other."""
    if labels.ndim == 2:
        return labels.astype(np.int64)
    is_counted = np.arange(n_labels.max(initial=0)) < n_labels[:, None]
    padded = np.zeros(is_counted.shape, dtype=np.int64)
    padded[is_counted] = labels
    return padded


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"ctc_loss": compute_ctc_loss}
