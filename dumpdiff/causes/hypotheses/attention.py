"""Masks, masked scores and probabilities of attention, and the axis of a softmax."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ...model.trace import FORWARD
from ...operators.attention import make_causal_mask
from ...operators.softmax import softmax
from ..fault_case import FaultCase, compute_residual, find_masked
from ..hypothesis import Candidate, Hypothesis

#: Kinds that make probabilities of attention scores.
SCORE_KINDS = {"softmax", "scaled_masked_softmax"}
#: Value of a masked score; ``find_masked`` recognizes it.
MASKED_SCORE = -1e30
#: Shifts of the causal mask tried for scores, probabilities and masks.
_MASK_SHIFTS = (1, -1, 2, -2)
#: First diagonals of masks that keep (rather than hide) the upper triangle.
_KEPT_DIAGONALS = range(-2, 4)


def is_attention(scope: str) -> bool:
    """Return whether a scope names an attention block."""
    return bool(re.search(r"att(entio)?n", scope, re.IGNORECASE))


def is_cross_attention(scope: str) -> bool:
    """Return whether a scope names attention of a decoder to an encoder."""
    return bool(re.search(r"cross|enc_?dec|encoder_decoder|inter_attention", scope, re.IGNORECASE))


def find_hidden(array: AnyArray) -> Flags | None:
    """Return what is hidden in masked scores, probabilities or a mask of zeros and ones.

    True means not seen. None for other arrays.
    """
    if array.ndim < 2 or array.shape[-1] < 2:
        return None
    is_masked = find_masked(array)
    if is_masked.any():
        return is_masked
    if array.min() >= 0 and array.max() <= 1:
        is_zero: Flags = array == 0
        return is_zero
    return is_masked


def suggest_mask(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that other scores are hidden: none, or those beyond another diagonal."""
    hidden = find_hidden(case.faithful)
    if case.phase != FORWARD or hidden is None:
        return
    if hidden.shape[-1] != hidden.shape[-2]:
        return
    masks = hidden.reshape(-1, *hidden.shape[-2:])
    if not np.array_equal(masks[0], masks[-1]):
        return
    first_hidden, is_keeping = _find_first_hidden(masks[0])
    contrast = "" if first_hidden is None else f"hides from diagonal {first_hidden} on"
    for description, cause, mask in _list_masks(masks[0], first_hidden):
        new_hidden = np.broadcast_to(~mask if is_keeping else mask, hidden.shape)
        for predicted in _apply_mask(case, hidden, new_hidden):
            yield Candidate(predicted, description, contrast, unchanged=case.faithful, cause=cause)


def _find_first_hidden(mask: Flags) -> tuple[int | None, bool]:
    """Return (first hidden diagonal, whether ``mask`` keeps what it flags) of a causal mask.

    (None, False) if it is none. Nothing and everything flagged is a mask that hides nothing or
    everything, not one that keeps everything or nothing.
    """
    length = len(mask)
    first_hidden = _find_diagonal(mask, range(-length, length + 1))
    if first_hidden is not None:
        return first_hidden, False
    first_hidden = _find_diagonal(~mask, _KEPT_DIAGONALS)
    return first_hidden, first_hidden is not None


def _list_masks(mask: Flags, first_hidden: int | None) -> list[tuple[str, str, Flags]]:
    """Return (description, cause, hidden) of other masks; shifted ones of a causal mask only."""
    length = len(mask)
    masks = [("no mask", "mask-missing", np.zeros_like(mask))]
    if first_hidden is not None:
        for shift in _MASK_SHIFTS:
            description = format_mask_shift(shift, first_hidden)
            shifted_mask = make_causal_mask(length, length, first_hidden + shift)
            masks.append((description, "mask-shifted", shifted_mask))
    return masks


def _find_diagonal(mask: Flags, diagonals: Sequence[int]) -> int | None:
    """Return the first diagonal for which ``mask`` is a causal mask."""
    length = len(mask)
    for diagonal in diagonals:
        if np.array_equal(mask, make_causal_mask(length, length, diagonal)):
            return diagonal
    return None


def format_mask_shift(shift: int, first_hidden: int) -> str:
    """Return the words for a causal mask that hides from another diagonal on."""
    plural = "s" if abs(shift) > 1 else ""
    return (
        f"a causal mask shifted by {shift} diagonal{plural}, which hides from diagonal "
        f"{first_hidden + shift} on"
    )


def _apply_mask(case: FaultCase, hidden: Flags, new_hidden: Flags) -> Iterator[AnyArray]:
    """Yield the faithful side's array with another mask, for each thing that it may be."""
    if find_masked(case.faithful).any() or find_masked(case.faulty).any():
        for scores in case.find_same_size_arrays():  # the array holds masked scores
            if find_masked(scores).any():
                continue
            masked_scores = np.where(hidden, MASKED_SCORE, scores)
            if compute_residual(masked_scores, case.faithful) <= case.limit:
                yield np.where(new_hidden, MASKED_SCORE, scores)
        yield np.where(new_hidden, MASKED_SCORE, 0.0)  # the array is a mask to add
        return
    if _holds_zeros_and_ones(case.faithful):
        yield np.where(new_hidden, 0.0, 1.0)  # find_hidden() takes zeros for hidden
        return
    for scores in case.find_same_size_arrays():  # the array holds probabilities
        for logits in (scores, np.where(hidden, MASKED_SCORE, scores)):
            if case.matches_faithful(softmax(logits)):
                yield softmax(np.where(new_hidden, MASKED_SCORE, scores))


def _holds_zeros_and_ones(array: AnyArray) -> bool:
    """Return whether all elements are 0 or 1; the first rows rule out most arrays."""
    if not set(np.unique(array[..., :2, :])) <= {0.0, 1.0}:
        return False
    return set(np.unique(array)) <= {0.0, 1.0}


def suggest_softmax_axis(case: FaultCase) -> Iterator[Candidate]:
    """Suggest softmax along another axis, or sigmoid in place of softmax."""
    if not case.is_forward_value:
        return
    may_be_softmax = case.faithful.ndim >= 2 and case.faithful.min() >= 0
    if not may_be_softmax:
        return
    for x in case.find_same_size_arrays():
        outputs = [softmax(x, axis) for axis in range(x.ndim)]
        for axis, unchanged in enumerate(outputs):
            if case.matches_faithful(unchanged):
                yield from _replace_softmax(case, x, outputs, axis)
                return


def _replace_softmax(
    case: FaultCase, x: AnyArray, outputs: Sequence[Floats], axis: int
) -> Iterator[Candidate]:
    unchanged = outputs[axis]
    for other_axis, output in enumerate(outputs):
        if other_axis != axis:
            yield Candidate(
                output,
                f"softmax along axis {other_axis - x.ndim}",
                f"has axis {axis - x.ndim}",
                parameters={"axis": float(other_axis - x.ndim)},
                unchanged=unchanged,
            )
    is_router = "topk" in case.consumer_kinds
    yield Candidate(
        1 / (1 + np.exp(-x)),
        "sigmoid",
        "has softmax",
        unchanged=unchanged,
        cause="router-normalisation" if is_router else "activation-kind",
    )


#: About masks, masked scores and probabilities themselves.
MASK_HYPOTHESES = (Hypothesis("mask-missing", suggest_mask),)

HYPOTHESES = (Hypothesis("softmax-axis", suggest_softmax_axis),)
