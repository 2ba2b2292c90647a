"""Masks of attention: other scores are hidden, hidden by another number, or biased by distance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ...model.formatting import format_first_numbers
from ...model.trace import FORWARD
from ...operators.decisions import COMPARISONS, compare_inputs
from ..fault_case import FaultCase, compute_residual, find_masked
from ..hypothesis import Candidate, Hypothesis
from .attention import is_cross_attention

#: Fewest tokens that show a window or a bias by distance.
_MIN_TOKENS = 4
#: Fewest elements of a mask that another one is not by chance when it is moved.
_MIN_MASK_ELEMENTS = 16
#: Numbers of hidden keys that are listed.
_MAX_LISTED_KEYS = 8
#: A bias by distance is one slope per head to this share of its largest value.
_MAX_SLOPE_ERROR = 1e-4


def suggest_other_mask(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that other scores are hidden, or that what hides them is a small number.

    The value is a mask of zeros and masking constants, or such a mask added to known scores.
    """
    faithful, faulty = case.faithful, case.faulty
    if case.phase != FORWARD or faithful.ndim < 2 or min(faithful.shape[-2:]) < 2:
        return
    hidden = find_masked(faithful)
    if not hidden.any() or hidden.all():
        return
    for scores in _list_scores(case, hidden):
        unchanged = np.where(hidden, faithful, scores)
        faulty_hidden = find_masked(faulty)
        if faulty_hidden.any():
            yield Candidate(
                np.where(faulty_hidden, faulty, scores),
                f"a mask that {describe_hidden(faulty_hidden)}",
                describe_hidden(hidden),
                unchanged=unchanged,
                cause=name_mask_change(case, faulty_hidden, hidden),
            )
            continue
        offset = float(np.median((faulty - scores)[hidden]))
        fill = float(np.median(faulty[hidden]))
        for predicted, number in (
            (scores + offset * hidden, offset),
            (np.where(hidden, fill, scores), fill),
        ):
            if number:
                yield Candidate(
                    predicted,
                    f"a mask that adds {number:.4g}: hidden scores still count",
                    "hides them",
                    parameters={"fill": number},
                    unchanged=unchanged,
                    cause="mask-fill",
                )


def suggest_other_cells(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that a table of zeros and one negative number, added to scores, hides others."""
    faithful, faulty = case.faithful, case.faulty
    if case.phase != FORWARD or not case.is_source or faithful.ndim < 2:
        return
    fills = np.unique(faithful)
    if len(fills) != 2 or not fills[0] < fills[1] == 0 or not np.isin(faulty, fills).all():
        return
    hidden, faulty_hidden = faithful != 0, faulty != 0
    if faithful.size >= _MIN_MASK_ELEMENTS and faulty_hidden.any():
        yield Candidate(
            np.where(faulty_hidden, fills[0], 0.0),
            f"a mask that {describe_hidden(faulty_hidden)}",
            describe_hidden(hidden),
            unchanged=faithful,
            cause=name_mask_change(case, faulty_hidden, hidden),
        )


def suggest_other_threshold(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that a comparison has the number that the other side's comparison has."""
    call, faulty_call = case.call, case.faulty_call
    if call is None or faulty_call is None or call.kind not in COMPARISONS:
        return
    if len(call.inputs) < 2 or not len(call.numbers) == len(faulty_call.numbers) == 1:
        return
    own, number = call.numbers[0], faulty_call.numbers[0]
    inputs = tuple(item if item.ndim else np.array(number) for item in call.inputs)
    (_, unchanged), (_, predicted) = chain(
        compare_inputs(call), compare_inputs(replace(call, inputs=inputs))
    )
    if number != own and predicted.size == case.faithful.size:
        yield Candidate(
            predicted.reshape(case.faithful.shape),
            f"a comparison with {number:g}",
            f"compares with {own:g}",
            parameters={"threshold": number},
            unchanged=unchanged.reshape(case.faithful.shape),
            cause="argument",
        )


def suggest_rolled_mask(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that a mask of zeros and ones, or of truth values, begins at another place.

    A mask of tokens with a place for a first one has that place at its end.
    """
    faithful = case.faithful
    is_mask = faithful.size >= _MIN_MASK_ELEMENTS and np.isin(faithful, (0, 1)).all()
    if case.phase != FORWARD or case.is_source or not is_mask or np.ptp(faithful) == 0:
        return
    for axis, length in enumerate(faithful.shape):
        for shift in range(1, length):
            rolled = np.roll(faithful, shift, axis)
            if np.array_equal(rolled, case.faulty):
                signed = shift if 2 * shift <= length else shift - length
                text = f"a mask rolled by {signed} along axis {axis - faithful.ndim}"
                yield Candidate(rolled, text, unchanged=faithful, cause="mask-shifted")
                return


def suggest_other_keys(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that flags hide other keys of some sequences, whatever the query is.

    Both masks hide what one table hides, such as later tokens, and keys: those of padding.
    """
    faithful, faulty = case.faithful, case.faulty
    has_keys = faithful.ndim > 2 and min(faithful.shape[-2:]) > 1
    if case.phase != FORWARD or case.is_source or not has_keys:
        return
    if not np.isin(faithful, (0, 1)).all() or not np.isin(faulty, (0, 1)).all():
        return
    for is_seen in (True, False):
        seen, faulty_seen = (faithful != 0) == is_seen, (faulty != 0) == is_seen
        table = (seen | faulty_seen).any(axis=tuple(range(seen.ndim - 2)))
        keys, faulty_keys = (flags.any(axis=-2, keepdims=True) for flags in (seen, faulty_seen))
        if np.array_equal(keys, faulty_keys) or (table & keys != seen).any():
            continue
        sequence = tuple(np.argwhere(keys != faulty_keys)[0, :-2])
        hidden, faulty_hidden = (
            format_first_numbers(np.flatnonzero(~flags[sequence]).tolist(), _MAX_LISTED_KEYS)
            for flags in (keys, faulty_keys)
        )
        yield Candidate(
            (table & faulty_keys) == is_seen,
            f"a mask that hides the keys {faulty_hidden} of a sequence",
            f"hides {hidden}",
            unchanged=faithful,
            cause=name_mask_change(case, ~faulty_seen, ~seen),
        )


def _list_scores(case: FaultCase, hidden: Flags) -> Iterator[AnyArray]:
    """Yield the scores before the mask was added: zeros, or an operand."""
    if not case.faithful[~hidden].any():
        yield np.zeros_like(case.faithful)
        return
    for scores in case.find_same_size_arrays():
        if find_masked(scores).any():
            continue
        if compute_residual(scores[~hidden], case.faithful[~hidden]) <= case.limit:
            yield scores


def name_mask_change(case: FaultCase, hidden: Flags, faithful_hidden: Flags) -> str:
    """Return the cause of another mask."""
    if is_cross_attention(case.finding.scope):
        return "cross-mask"
    diagonals = [find_first_hidden_diagonal(flags) for flags in (hidden, faithful_hidden)]
    if None not in diagonals:  # also with the keys of a memory before those of the queries
        return "mask-shifted"
    return "mask-kind" if hidden.shape[-1] == hidden.shape[-2] else "cross-mask"


def describe_hidden(hidden: Flags) -> str:
    """Return what a mask hides, as the end of a sentence about it; some of it is hidden."""
    masks = hidden.reshape(-1, *hidden.shape[-2:])
    n_keys = masks.shape[-1]
    count = f"hides {int(masks.sum())} of {masks.size} scores"
    if not (masks == masks[0]).all():
        return count
    diagonal = find_first_hidden_diagonal(hidden)
    if diagonal is not None:
        return f"hides from diagonal {diagonal} on"
    band = _describe_band(masks[0])
    if band:
        return band
    if (masks[0] == masks[0][0]).all():
        return f"hides {int(masks[0][0].sum())} of {n_keys} keys from all queries"
    return count


def _describe_band(mask: Flags) -> str:
    """Return which distances a query sees; '' if the mask does not depend on the distance alone."""
    n_queries, n_keys = mask.shape
    distances = np.subtract.outer(np.arange(n_queries), np.arange(n_keys))
    visible_distances = np.unique(distances[~mask])
    is_band = np.array_equal(mask, ~np.isin(distances, visible_distances))
    if not is_band or not len(visible_distances) or n_queries < _MIN_TOKENS:
        return ""
    first, last = int(visible_distances[0]), int(visible_distances[-1])
    if first >= 0 and last < n_queries - 1:
        return f"sees a window of {last - first + 1} tokens"
    if first == -last:
        return f"sees a window of {last} tokens on both sides"
    return "sees later tokens only" if last <= 0 else ""


def find_first_hidden_diagonal(hidden: Flags) -> int | None:
    """Return the first hidden diagonal of a causal mask; None if it is none."""
    masks = hidden.reshape(-1, *hidden.shape[-2:])
    if not (masks == masks[0]).all() or not masks[0].any():
        return None
    distances = np.subtract.outer(np.arange(masks.shape[1]), np.arange(masks.shape[2]))
    first_hidden = int(-distances[masks[0]].max())
    if np.array_equal(masks[0], distances <= -first_hidden):
        return first_hidden
    return None


def suggest_distance_bias(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another slope per head of a bias by distance (ALiBi, Press et al. arXiv:2108.12409).

    The value is such a bias, a mask with it, or either of them added to known scores.
    """
    if case.phase != FORWARD or case.faithful.ndim < 2 or case.is_discrete:
        return
    n_queries, n_keys = case.faithful.shape[-2:]
    if n_queries != n_keys or n_queries < _MIN_TOKENS:
        return
    hidden = find_masked(case.faithful)
    if not np.array_equal(hidden, find_masked(case.faulty)) or hidden.all():
        return
    difference = np.where(hidden, 0.0, case.faulty - case.faithful)
    distances = -np.subtract.outer(np.arange(n_queries), np.arange(n_keys))
    for signed in (distances, np.abs(distances)):
        predicted_difference, slopes = _fit_slopes(difference, signed, hidden)
        scale = float(np.abs(difference).max())
        is_linear = np.abs(predicted_difference - difference).max() <= _MAX_SLOPE_ERROR * scale
        if not scale or not is_linear:
            continue
        faithful_bias, faithful_slopes = _fit_slopes(case.faithful, signed, hidden)
        visible_bias = np.where(hidden, 0.0, case.faithful)
        is_bias = np.abs(faithful_bias - visible_bias).max() <= _MAX_SLOPE_ERROR * scale
        text = "{} per token of distance"
        if is_bias and faithful_slopes.any():
            description = text.format(f"a bias of {_format_slopes(faithful_slopes + slopes)}")
            contrast = text.format(f"has {_format_slopes(faithful_slopes)}")
        else:
            description = text.format(f"scores with a bias of {_format_slopes(slopes)} more")
            contrast = ""
        yield Candidate(
            np.where(hidden, case.faithful, case.faithful + predicted_difference),
            description,
            contrast,
            unchanged=case.faithful,
            cause="relative-bias",
        )
        return


def _fit_slopes(array: AnyArray, distances: AnyArray, hidden: Flags) -> tuple[Floats, Floats]:
    """Return (slope times distance, slopes), with one slope per matrix of the array."""
    matrices = np.where(hidden, 0.0, array).reshape(-1, *array.shape[-2:])
    weights = np.where(hidden, 0, distances).reshape(matrices.shape)
    energies = np.maximum((weights**2).sum(axis=(1, 2)), 1)
    slopes: Floats = (matrices * weights).sum(axis=(1, 2)) / energies
    return (slopes[:, None, None] * weights).reshape(array.shape), slopes


def _format_slopes(slopes: Floats) -> str:
    """Return the different slopes, at most four of them."""
    texts = list(dict.fromkeys(f"{slope:.4g}" for slope in slopes.tolist()))
    return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")


HYPOTHESES = (
    Hypothesis("mask-kind", suggest_other_mask),
    Hypothesis("mask-kind", suggest_other_cells),
    Hypothesis("mask-kind", suggest_other_keys),
    Hypothesis("argument", suggest_other_threshold),
    Hypothesis("mask-shifted", suggest_rolled_mask),
    Hypothesis("relative-bias", suggest_distance_bias),
)
