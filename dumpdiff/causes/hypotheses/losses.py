"""The loss: labels shifted, another mean, another set of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.formatting import format_first_numbers
from ...model.trace import BACKWARD, FORWARD
from ...operators.losses import compute_token_losses
from ...operators.softmax import log_softmax
from ..fault_case import FaultCase, Operand
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor

#: Positions by which labels may be shifted.
_SHIFTS = (1, -1, 2, -2)
#: Shortest row of labels whose shift is recognized.
_MIN_LABELS = 4
#: Rows of a batch beyond which their order is not searched.
_MAX_ROWS = 4096
#: Fewest sequences of which each has a loss of its own.
_MIN_SEQUENCES = 2
#: Numbers of sequences that a sentence lists.
_N_LISTED = 4
#: Fewest tokens of a mask, and of losses per token.
_MIN_MASK_TOKENS, _MIN_TOKENS = 4, 3
#: Fewest classes of a smoothed gradient, and how exactly a loss shows the smoothing.
_MIN_CLASSES, _MAX_SMOOTHING_ERROR = 3, 1e-4
#: Largest label smoothing that people choose.
MAX_SMOOTHING = 0.5
#: Sizes of a tensor-parallel group over which a vocabulary may be gathered repeatedly.
_VOCABULARY_COPIES = (2, 4, 8)
#: Numbers that are no token counts.
_SMALL_COUNTS = {0, 1, 2}
#: Leading elements of the last axis that show whether an operand is a mask of tokens.
_MASK_SAMPLE = 64
#: Difference of two shares of labels that are one number, in float32.
_MAX_SHARE_ERROR = 1e-6


def suggest_shifted_labels(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the same labels, shifted along the last axis, or with rows in another order.

    The elements that a shift moves in at the ends are not judged.
    """
    faithful, faulty = case.faithful, case.faulty
    if not case.is_source or not case.is_discrete:
        return
    if faithful.ndim < 1 or faithful.shape[-1] < _MIN_LABELS:
        return
    for length, shift in product(_list_row_lengths(faithful), _SHIFTS):
        rows, faulty_rows = faithful.reshape(-1, length), faulty.reshape(-1, length)
        shifted_rows = np.roll(rows, shift, axis=-1)
        ends = np.s_[:, :shift] if shift > 0 else np.s_[:, shift:]
        shifted_rows[ends] = faulty_rows[ends]
        shifted = shifted_rows.reshape(faithful.shape)
        with_ignored = np.where(faulty < 0, faulty, shifted)  # ignored labels are negative
        for predicted in (shifted, with_ignored):
            yield Candidate(
                predicted,
                f"labels shifted by {shift}",
                parameters={"shift": float(shift)},
                unchanged=faithful,
                cause="label-shift",
            )
    order = _find_row_order(faithful, faulty)
    if order is not None:
        yield Candidate(
            faithful[order],
            f"the rows of the batch in the order {order}",
            unchanged=faithful,
            cause="row-shift",
        )


def _list_row_lengths(labels: AnyArray) -> list[int]:
    """Return the lengths that sequences of labels may have, which are often joined to one axis."""
    total = labels.shape[-1]
    if labels.ndim > 1 or total > _MAX_ROWS:
        return [total]
    return [length for length in range(total, _MIN_LABELS, -1) if total % length == 0]


def _find_row_order(rows: AnyArray, other_rows: AnyArray) -> list[int] | None:
    """Return ``order`` with other_rows[i] = rows[order[i]]; None if there is none."""
    if rows.ndim < 2 or len(rows) > _MAX_ROWS:
        return None
    row_numbers = {}
    for number, row in enumerate(rows):
        row_numbers[row.tobytes()] = number
    order = [row_numbers.get(row.tobytes(), -1) for row in other_rows]
    if sorted(order) != list(range(len(rows))):
        return None
    return order


def suggest_other_token_mask(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that another set of tokens counts, if a mask of zeros and ones differs."""
    faithful, faulty = case.faithful, case.faulty
    if not case.is_source or case.call is not None or faithful.size < _MIN_MASK_TOKENS:
        return
    is_square = faithful.ndim >= 2 and faithful.shape[-1] == faithful.shape[-2]
    if is_square or not _holds_zeros_and_ones(faithful) or not _holds_zeros_and_ones(faulty):
        return
    more_or_fewer = "more" if float(faulty.mean() - faithful.mean()) > 0 else "fewer"
    yield Candidate(
        faulty.copy(),
        f"{more_or_fewer} tokens counted: {int(faulty.sum())}",
        f"counts {int(faithful.sum())}",
        unchanged=faithful,
        cause="loss-reduction",
    )


def _holds_zeros_and_ones(array: AnyArray) -> bool:
    return set(np.unique(array).tolist()) <= {0.0, 1.0}


@dataclass(frozen=True, eq=False)
class _Reduction:
    """One way in which losses per token become the loss."""

    value: Floats
    name: str


def suggest_other_loss(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a cross-entropy with shifted labels, a sum, or a mean over other tokens."""
    if not case.is_forward_value or not case.is_near_loss:
        return
    for logits, labels in _iterate_logits_and_labels(case):
        losses = compute_token_losses(logits, labels)
        masks = [np.ones(losses.shape), *_iterate_token_masks(case.operands, losses.size)]
        for reduction in _iterate_reductions(losses, masks):
            if not case.matches_faithful(reduction.value):
                continue
            same_size = [
                other
                for other in _iterate_reductions(losses, masks)
                if other.value.size == reduction.value.size
            ]
            other_reductions = [other for other in same_size if other.name != reduction.name]
            yield from _replace_reduction(reduction, other_reductions)
            yield from _shift_labels(logits, labels, masks, reduction)
            return


def _shift_labels(
    logits: AnyArray, labels: AnyArray, masks: Sequence[Floats], reduction: _Reduction
) -> Iterator[Candidate]:
    for shift in _SHIFTS:
        losses = compute_token_losses(logits, np.roll(labels, shift))
        values = {other.name: other.value for other in _iterate_reductions(losses, masks)}
        yield Candidate(
            values[reduction.name],
            f"labels shifted by {shift}",
            parameters={"shift": float(shift)},
            unchanged=reduction.value,
            cause="label-shift",
        )


def suggest_other_tokens(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another sum or mean of agreeing losses per token."""
    if not case.is_forward_value or case.faithful.size != 1:
        return
    for operand in case.operands:
        losses = operand.array.reshape(-1)
        if not operand.agrees or not operand.is_floating:
            continue
        if len(operand.shape) > 2 or losses.size < _MIN_TOKENS:
            continue
        n_sequences = operand.shape[0] if len(operand.shape) == 2 else 0
        masks = [np.ones(losses.shape), *_iterate_token_masks(case.operands, losses.size)]
        for reduction in _iterate_reductions(losses, masks, n_sequences):
            if reduction.value.size != 1 or not case.matches_faithful(reduction.value):
                continue
            faulty_masks = _iterate_token_masks(case.faulty_operands, losses.size)
            all_masks = [*masks, *faulty_masks]
            other_reductions = _iterate_reductions(losses, all_masks, n_sequences)
            yield from _replace_reduction(reduction, other_reductions)
            return


def _replace_reduction(
    reduction: _Reduction, other_reductions: Iterable[_Reduction]
) -> Iterator[Candidate]:
    for other in other_reductions:
        yield Candidate(
            other.value,
            other.name,
            f"has {reduction.name}",
            unchanged=reduction.value,
            cause="loss-reduction",
        )


def _iterate_logits_and_labels(case: FaultCase) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield (logits (tokens, vocabulary), labels (tokens,)) of the operands."""
    for label_operand in case.operands:
        labels = label_operand.array
        if labels.dtype.kind not in "iu" or not label_operand.shape:
            continue
        for logit_operand in case.operands:
            logits = logit_operand.array
            if not logit_operand.is_floating or logits.ndim < 2:
                continue
            n_tokens = int(np.prod(logits.shape[:-1]))
            if n_tokens == labels.size:
                yield logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)


def _iterate_token_masks(operands: Sequence[Operand], n_tokens: int) -> Iterator[Floats]:
    """Yield the operands that are masks of zeros and ones over the tokens."""
    for operand in operands:
        array = operand.array
        if array.size != n_tokens or array.dtype.kind not in "bf":
            continue
        if _holds_zeros_and_ones(array):
            yield array.reshape(-1).astype(np.float64)


def _iterate_reductions(
    losses: Floats, masks: Sequence[Floats], n_sequences: int = 0
) -> Iterator[_Reduction]:
    """Yield the losses per token, then sum and mean over each mask; the first mask has all.

    If the losses are those of ``n_sequences`` of one length, also the sum divided by these, and
    the mean of the means of each.
    """
    yield _Reduction(losses, "a loss per token")
    for number, mask in enumerate(masks):
        n_counted, n_tokens = int(mask.sum()), mask.size
        tokens = f"all {n_tokens} tokens"
        if number:
            tokens = f"the {n_counted} of {n_tokens} tokens that count"
            yield _Reduction(losses * mask, f"a loss per token, for {tokens}")
        total = np.asarray((losses * mask).sum())
        yield _Reduction(total, f"the sum over {tokens}")
        yield _Reduction(np.asarray(total / mask.sum()), f"the mean over {tokens}")
        if number:
            mean = np.asarray(total / mask.size)
            yield _Reduction(mean, f"the sum over {tokens}, divided by {n_tokens}")
        if n_sequences > 1:
            rows = f"the {n_sequences} rows"  # of sequences, or of other samples
            by_row = np.asarray(total / n_sequences)
            yield _Reduction(by_row, f"the sum over {tokens}, divided by {rows}")
            sums, counts = ((losses * mask).reshape(n_sequences, -1), mask.reshape(n_sequences, -1))
            means = sums.sum(axis=1) / np.maximum(counts.sum(axis=1), 1)
            name = f"the mean over {rows} of the mean of each over {tokens}"
            yield _Reduction(np.asarray(means.mean()), name)


def suggest_smoothing(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another label smoothing e: (1 - e) L(label) + e mean of L over all classes.

    Szegedy et al., arXiv:1512.00567. In the gradient of the logits the difference of two smoothings
    is d (onehot - 1 / classes) / tokens.
    """
    if case.phase == FORWARD and case.is_forward_value:
        yield from _smooth_loss(case)
        yield from _smooth_table(case)
    elif case.phase == BACKWARD and case.faithful.ndim >= 2:
        yield from _smooth_gradient(case)


def has_several_losses(case: FaultCase) -> bool:
    """Return whether a side computes several cross-entropies, as a contrastive loss does.

    A mixture of them is near one with some label smoothing of two digits.
    """
    return any(kinds.count("cross_entropy") > 1 for kinds in (case.kinds, case.faulty_kinds))


def _smooth_loss(case: FaultCase) -> Iterator[Candidate]:
    if case.faithful.size == 1 and has_several_losses(case):
        return
    for hard_losses, soft_losses in _iterate_losses_by_share(case):
        n_counted = max(1, int(np.count_nonzero(hard_losses)))
        pairs = [(hard_losses, soft_losses)]
        if case.faithful.size == hard_losses.size:
            is_counted = case.faithful.reshape(-1) != 0  # a mask of tokens is applied as well
            pairs.append((hard_losses * is_counted, soft_losses * is_counted))
        for hard, soft in (
            *pairs,
            (np.asarray(hard_losses.sum() / n_counted), np.asarray(soft_losses.sum() / n_counted)),
        ):
            faithful_share = _fit_smoothing(hard, soft, case.faithful)
            faulty_share = _fit_smoothing(hard, soft, case.faulty)
            if faithful_share is None or faulty_share is None or faithful_share == faulty_share:
                continue
            yield Candidate(
                (1 - faulty_share) * hard + faulty_share * soft,
                f"label smoothing = {faulty_share:.3g}",
                f"has {faithful_share:.3g}",
                parameters={"label_smoothing": faulty_share},
                unchanged=(1 - faithful_share) * hard + faithful_share * soft,
                cause="label-smoothing",
            )


def _iterate_losses_by_share(case: FaultCase) -> Iterator[tuple[Floats, Floats]]:
    """Yield (losses of the labels, losses of all classes alike), each per token.

    A label is a number, or a share of each class, as where samples are mixed.
    """
    for logits, labels in _iterate_logits_and_labels(case):
        hard_losses = compute_token_losses(logits, labels)
        yield hard_losses, np.where(hard_losses == 0, 0.0, -log_softmax(logits).mean(axis=-1))
    matrices = [item.array for item in case.operands if item.is_floating and item.array.ndim == 2]
    shares = [array for array in matrices if _holds_shares(array)]
    for logits, labels in product(matrices, shares):
        if logits is not labels and logits.shape == labels.shape:
            log_shares = log_softmax(logits)
            yield -(labels * log_shares).sum(axis=-1), -log_shares.mean(axis=-1)


def _holds_shares(array: AnyArray) -> bool:
    """Return whether each row holds shares of a whole."""
    return bool(array.min() >= 0 and np.abs(array.sum(axis=-1) - 1).max() <= _MAX_SHARE_ERROR)


def _smooth_table(case: FaultCase) -> Iterator[Candidate]:
    """Suggest other shares of the labels, in the table of shares itself."""
    tables = [_read_shares(array) for array in (case.faulty, case.faithful)]
    if tables[0] is None or tables[1] is None or not np.array_equal(tables[0][0], tables[1][0]):
        return
    is_label = tables[0][0]
    predicted, unchanged = (
        np.where(is_label, high, low) for _, high, low in (tables[0], tables[1])
    )
    texts = [f"shares of {high:.3g} for a label and {low:.3g} for the others"
             for _, high, low in (tables[0], tables[1])]  # fmt: skip
    yield Candidate(
        predicted, texts[0], f"has {texts[1]}", unchanged=unchanged, cause="label-smoothing"
    )


def _read_shares(array: AnyArray) -> tuple[AnyArray, float, float] | None:
    """Return (places of the labels, their share, that of the others) of smoothed labels.

    None for other arrays: each row has one label, and the shares of all rows are the same.
    """
    if array.ndim < 2 or array.shape[-1] < _MIN_CLASSES:
        return None
    is_label = array == array.max(axis=-1, keepdims=True)
    high, low = array[is_label], array[~is_label]
    if not np.all(is_label.sum(axis=-1) == 1) or low.min() < 0 or high.max() > 1:
        return None
    if np.ptp(high) > _MAX_SHARE_ERROR or np.ptp(low) > _MAX_SHARE_ERROR:
        return None
    return is_label, float(high.mean()), float(low.mean())


def _fit_smoothing(hard: Floats, soft: Floats, value: AnyArray) -> float | None:
    """Return the smoothing that gives these losses; only a number of two digits, as people choose.

    Any single loss is some mixture of two others.
    """
    if hard.size != value.size:
        return None
    direction = (soft - hard).reshape(-1)
    energy = float(direction @ direction)
    if not energy > 0:
        return None
    share = float(direction @ (value.reshape(-1) - hard.reshape(-1))) / energy
    rounded_share = round(share, 2) + 0.0  # -0 becomes 0
    is_round = abs(share - rounded_share) <= _MAX_SMOOTHING_ERROR
    return rounded_share if is_round and 0 <= rounded_share <= MAX_SMOOTHING else None


def _smooth_gradient(case: FaultCase) -> Iterator[Candidate]:
    n_classes = case.faithful.shape[-1]
    faithful, faulty = (array.reshape(-1, n_classes) for array in (case.faithful, case.faulty))
    is_counted = np.any(faithful != 0, axis=1)
    n_tokens = int(is_counted.sum())
    if n_tokens < _MIN_TOKENS or n_classes < _MIN_CLASSES:
        return
    difference = faulty - faithful
    direction = np.zeros_like(faithful)
    direction[is_counted] = -1 / n_classes
    labels = np.argmin(faithful, axis=1)  # the only class with a negative gradient
    direction[np.flatnonzero(is_counted), labels[is_counted]] += 1
    share = n_tokens * fit_factor(direction, difference)
    if np.isfinite(share) and share != 0:
        predicted = (faithful + share / n_tokens * direction).reshape(case.faithful.shape)
        change = (
            f"a label smoothing that is {abs(share):.3g} {'larger' if share > 0 else 'smaller'}"
        )
        yield Candidate(
            predicted,
            change,
            parameters={"label_smoothing": share},
            unchanged=case.faithful,
            cause="label-smoothing",
        )


def suggest_constant(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = faithful + log n (vocabulary counted n times), or sum against mean."""
    if not case.is_forward_value or not case.is_of_loss:
        return
    for n_copies in _VOCABULARY_COPIES:
        yield Candidate(
            case.faithful + np.log(n_copies),
            f"a loss larger by log {n_copies}, as if the vocabulary were gathered {n_copies} times",
            unchanged=case.faithful,
            cause="loss-reduction",
        )
    for count in sorted(_collect_token_counts(case) - _SMALL_COUNTS):
        parameters = {"tokens": float(count)}
        yield Candidate(
            case.faithful * count,
            f"the sum over {count} tokens",
            "has their mean",
            parameters=parameters,
            unchanged=case.faithful,
            cause="loss-reduction",
        )
        yield Candidate(
            case.faithful / count,
            f"the mean over {count} tokens",
            "has their sum",
            parameters=parameters,
            unchanged=case.faithful,
            cause="loss-reduction",
        )


def _collect_token_counts(case: FaultCase) -> set[int]:
    """Return numbers of tokens: sizes of integer operands, sums of masks."""
    counts = set()
    for operand in case.operands:
        array = operand.array
        if array.dtype.kind in "iu":
            counts.add(int(array.size))
        if array.size > 1 and set(np.unique(array[..., :_MASK_SAMPLE])) <= {0, 1}:
            counts.add(int(array.sum()))
    return counts


def suggest_tokens_in_gradient(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = c faithful, if rows without a gradient are tokens that do not count.

    c is the ratio of the numbers of tokens that count; if these are equal, the number of tokens
    or its inverse.
    """
    if case.phase == FORWARD or not case.is_near_loss or case.faithful.ndim < 2:
        return
    faulty = case.faulty.reshape(-1, case.faulty.shape[-1])
    faithful = case.faithful.reshape(-1, case.faithful.shape[-1])
    is_counted, is_expected = np.any(faulty != 0, axis=1), np.any(faithful != 0, axis=1)
    n_counted, n_expected = int(is_counted.sum()), int(is_expected.sum())
    if min(n_counted, n_expected) < 2:
        return
    factors = {
        float(n_counted): (f"the sum over {n_counted} tokens", "has their mean"),
        1 / n_counted: (f"the mean over {n_counted} tokens", "has their sum"),
    }
    cause = "loss-reduction"
    if n_counted != n_expected:
        statement = (f"a mean over {n_counted} tokens", f"takes {n_expected}")
        factors = {n_expected / n_counted: statement}
        if _has_ignored_labels(case):
            cause = "ignore-index"
    for factor, (description, contrast) in factors.items():
        is_shared = (is_counted & is_expected)[:, None]
        yield Candidate(
            np.where(is_shared, factor * faithful, faulty).reshape(case.faithful.shape),
            description,
            contrast,
            parameters={"tokens": float(n_counted)},
            unchanged=case.faithful,
            cause=cause,
        )


def _has_ignored_labels(case: FaultCase) -> bool:
    """Return whether a side has negative labels: these tokens are to be ignored."""
    return any(
        operand.array.dtype.kind == "i" and operand.shape and bool((operand.array < 0).any())
        for operand in (*case.operands, *case.faulty_operands)
    )


#: About masks of tokens.
MASK_HYPOTHESES = (Hypothesis("loss-reduction", suggest_other_token_mask),)


def suggest_sequence_reduction(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another mean of the losses of sequences, one number each, as CTC has them.

    Each may be divided by the number of labels of its sequence. Either side may have recorded the
    losses: a fused operator gives their mean only.
    """
    if not case.is_forward_value or case.faithful.size != 1:
        return
    for losses in (*case.operands, *case.faulty_operands):
        n_sequences = int(np.prod(losses.shape))
        is_vector = len(losses.shape) == 1 and _MIN_SEQUENCES <= n_sequences <= _MAX_ROWS
        if not is_vector or not losses.is_floating or losses.parameter:
            continue
        reductions = list(_list_sequence_reductions(case, losses.array))
        for own_name, own_value in reductions:
            if not case.matches_faithful(own_value):
                continue
            for name, value in reductions:
                if name != own_name:
                    yield Candidate(
                        value.reshape(case.faithful.shape),
                        name,
                        f"takes {own_name}",
                        unchanged=own_value.reshape(case.faithful.shape),
                        cause="loss-reduction",
                    )
            return


def _list_sequence_reductions(case: FaultCase, losses: AnyArray) -> Iterator[tuple[str, Floats]]:
    """Yield (name, value) of the ways in which losses of sequences become one number."""
    n_losses = losses.size
    yield f"the mean of {n_losses} losses", np.asarray(losses.mean())
    yield f"the sum of {n_losses} losses", np.asarray(losses.sum())
    operands = (*case.list_shared_operands(), *case.find_given_values(losses.size))
    for counts in operands:
        array = counts.array.reshape(-1)
        if array.size != losses.size or array.dtype.kind not in "iu" or array.min() < 1:
            continue
        numbers = format_first_numbers(array.tolist(), _N_LISTED)
        yield f"the mean of {n_losses} losses divided by {numbers}", np.mean(losses / array)
        total = int(array.sum())
        yield f"the sum of {n_losses} losses divided by {total}", losses.sum() / total


HYPOTHESES = (
    Hypothesis("loss-reduction", suggest_tokens_in_gradient),
    Hypothesis("label-shift", suggest_shifted_labels),
    *MASK_HYPOTHESES,
    Hypothesis("loss-reduction", suggest_other_loss),
    Hypothesis("loss-reduction", suggest_other_tokens),
    Hypothesis("label-smoothing", suggest_smoothing),
    Hypothesis("loss-reduction", suggest_constant),
    Hypothesis("loss-reduction", suggest_sequence_reduction),
)
