"""Whole attention with another of the recorded masks or biases: the faulty side's own ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ..fault_case import FaultCase, Operand, find_masked
from ..hypothesis import Candidate, Hypothesis
from .attention import MASKED_SCORE, find_attention_call, list_masks
from .masks import describe_hidden, name_mask_change

#: Masks and biases of the faulty side that are tried, alone and two at a time.
_MAX_MASKS = 6
#: Masks that are tried, and products of the score matrices that they may cost together.
_MAX_TRIALS, _MAX_COST = 80, 1e8
#: Relative difference of numbers that a mask adds to every hidden score.
_EQUAL_FILL = 1e-4


def suggest_other_attention_mask(case: FaultCase) -> Iterator[Candidate]:
    """Suggest softmax(q k^T scale + mask) v with what the faulty side adds to the scores."""
    call = find_attention_call(case)
    if call is None:
        return
    masks = list_masks(case.faulty_operands, case.faulty, call.score_shape)
    masks = [mask for mask in masks if not mask.agrees or mask.is_floating][:_MAX_MASKS]
    max_trials = int(min(_MAX_TRIALS, _MAX_COST // (case.faulty.size * call.score_shape[1])))
    own_term = _make_terms(call.hidden)[0] if call.hidden is not None else np.zeros((1, 1))
    for term in islice(_list_terms(masks), max_trials):
        shape = np.broadcast_shapes(term.shape, own_term.shape)
        own, other = np.broadcast_to(own_term, shape), np.broadcast_to(term, shape)
        if np.array_equal(own, other):
            continue
        cause, description, contrast = _describe_term(case, other, own)
        yield Candidate(
            call.compute(call.scale, term),
            description,
            contrast,
            unchanged=call.output,
            cause=cause,
        )


def _list_terms(masks: Sequence[Operand]) -> Iterator[Floats]:
    """Yield what may be added to the scores: a mask or bias in each sense, or two of them."""
    terms = [_make_terms(mask.array) for mask in masks]
    for alternatives in terms:
        yield from alternatives
    for first, second in combinations(terms, 2):
        for term in first:
            for other in second:
                yield np.maximum(term + other, MASKED_SCORE)


def _make_terms(mask: AnyArray) -> list[Floats]:
    """Return what a mask adds to the scores; of flags, in both senses: hidden first, then seen."""
    if mask.dtype == bool:
        return [np.where(flags, MASKED_SCORE, 0.0) for flags in (mask, ~mask)]
    return [np.where(find_masked(mask), MASKED_SCORE, mask)]


def _describe_term(case: FaultCase, term: Floats, own: Floats) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of what is added to the scores in place of ``own``."""
    hidden, own_hidden = _find_hidden(term, own), _find_hidden(own, term)
    if np.array_equal(hidden, own_hidden):
        visible = term[~hidden]
        description = "another bias of the scores" if visible.any() else "no bias of the scores"
        return "relative-bias", description, "adds one" if own[~hidden].any() else "adds none"
    contrast = describe_hidden(own_hidden) if own_hidden.any() else "hides nothing"
    if not hidden.any():
        return "mask-missing", "no mask", contrast
    return (
        name_mask_change(case, hidden, own_hidden),
        f"a mask that {describe_hidden(hidden)}",
        contrast,
    )


def _find_hidden(term: Floats, other: Floats) -> Flags:
    """Return which scores a term hides; also by one number that it adds and another does not."""
    is_masked = find_masked(term)
    if is_masked.any() or find_masked(other).any():
        return is_masked
    difference = term - other
    fill = float(difference.min())
    is_filled: Flags = np.isclose(difference, fill, rtol=_EQUAL_FILL)
    is_mask = fill < 0 and bool(
        np.all(is_filled | np.isclose(difference, 0, atol=_EQUAL_FILL * -fill))
    )
    return is_filled if is_mask else np.zeros(term.shape, bool)


HYPOTHESES = (Hypothesis("mask-kind", suggest_other_attention_mask),)
