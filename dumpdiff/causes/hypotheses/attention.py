"""Attention: the mask, the axis of the softmax and the scale, step by step and as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ...model.trace import FORWARD
from ...operators.attention import attention, make_causal_mask, repeat_groups
from ...operators.softmax import softmax
from ..fault_case import FaultCase, Operand, compute_residual, find_masked
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import minimize

#: Kinds that make probabilities of attention scores.
SCORE_KINDS = {"softmax", "scaled_masked_softmax"}
#: Value of a masked score; ``find_masked`` recognizes it.
MASKED_SCORE = -1e30
#: Products of a score matrix beyond which whole attention is not tried at all, and beyond which it
#: is tried in few orders of the operands only.
_MAX_COST, _MAX_COST_OF_ALL_ORDERS = 3e7, 3e5
_COMMON_ORDERS: list[tuple[int, ...]] = [(0, 1, 2), (2, 1, 0), (1, 0, 2)]
#: Operands that may be q, k and v.
_MAX_OPERANDS = 4
#: Recorded masks that are tried, and kinds whose outputs are scores or probabilities.
_MAX_MASKS = 3
_SCORE_PRODUCERS = {"matmul", "einsum", *SCORE_KINDS}
#: First hidden diagonals tried for whole attention; a causal mask hides from diagonal 1 on.
_DIAGONALS = (0, 2, 3, -1)
#: Shifts of the causal mask tried for scores, probabilities and masks.
_MASK_SHIFTS = (1, -1, 2, -2)
#: First diagonals of masks that keep (rather than hide) the upper triangle.
_KEPT_DIAGONALS = range(-2, 4)
#: The scale is searched within exp(-4) to exp(4) of the faithful side's.
_SCALE_GRID = np.linspace(-4, 4, 17)
_SCALE_ROUNDS = 45


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
            description = _format_mask_shift(shift, first_hidden)
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


def _format_mask_shift(shift: int, first_hidden: int) -> str:
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


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Attention that gives the value of the faithful side."""

    q: AnyArray
    k: AnyArray
    v: AnyArray
    scale: float
    hidden: AnyArray | None  #: flags, or numbers that are added to the scores
    output: Floats
    is_recorded: bool = False  #: the mask is a recorded one, not a causal one that fits

    @property
    def score_shape(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.q.shape[-2], self.k.shape[-2]

    def compute(self, scale: float, hidden: AnyArray | None, axis: int = -1) -> Floats:
        """Return the output with another scale, mask (as ``hidden``) or axis of the softmax."""
        return attention(self.q, self.k, self.v, scale, hidden, axis)


def suggest_whole_attention(case: FaultCase) -> Iterator[Candidate]:
    """Suggest softmax(q k^T scale + mask) v with another scale, mask or axis."""
    call = find_attention_call(case)
    if call is None:
        return

    def measure_distance(log_scale: float) -> float:
        output = call.compute(float(np.exp(log_scale)), call.hidden)
        return float(np.linalg.norm(output - case.faulty))

    log_scale = minimize(measure_distance, np.log(call.scale) + _SCALE_GRID, _SCALE_ROUNDS)
    scale = float(np.exp(log_scale))
    factor = scale / call.scale
    yield Candidate(
        call.compute(scale, call.hidden),
        _describe_scale(case, scale, call.scale),
        recorded=case.describe_own_scalings(factor, in_softmax=True),
        parameters={"factor": factor, "scale": scale},
        unchanged=call.output,
        cause="scale",
    )
    if not call.is_recorded:
        yield from _change_mask(call)
    yield Candidate(
        call.compute(call.scale, call.hidden, -2),
        "softmax along axis -2",
        "has axis -1",
        parameters={"axis": -2.0},
        unchanged=call.output,
        cause="softmax-axis",
    )


def _describe_scale(case: FaultCase, scale: float, faithful_scale: float) -> str:
    """Return the description of scaled scores.

    A faithful scale of 1 means that the queries were scaled before, by an unknown number.
    """
    factor = scale / faithful_scale
    description = f"attention scores {factor:.4g} times the {case.faithful_side}'s"
    if faithful_scale == 1:
        return description
    return f"{description} (effective scale {scale:.4g} against {faithful_scale:.4g})"


def _change_mask(call: AttentionCall) -> Iterator[Candidate]:
    if call.hidden is None:
        yield Candidate(
            call.compute(call.scale, make_causal_mask(*call.score_shape)),
            "a causal mask",
            "has none",
            unchanged=call.output,
            cause="mask-shifted",
        )
        return
    yield Candidate(
        call.compute(call.scale, None),
        "no mask",
        "hides from diagonal 1 on",
        unchanged=call.output,
        cause="mask-missing",
    )
    for diagonal in _DIAGONALS:
        yield Candidate(
            call.compute(call.scale, make_causal_mask(*call.score_shape, diagonal)),
            _format_mask_shift(diagonal - 1, 1),
            "hides from diagonal 1 on",
            unchanged=call.output,
            cause="mask-shifted",
        )


def find_attention_call(case: FaultCase) -> AttentionCall | None:
    """Return attention over three operands that gives the faithful side's value."""
    faithful = case.faithful
    if not case.is_forward_value or faithful.ndim < 3:
        return None
    has_scores = bool({"attention", *SCORE_KINDS} & set(case.kinds))
    if not has_scores and not is_attention(case.finding.scope):
        return None
    arrays = [
        operand.array for operand in case.operands if _has_head_shape(operand.array, faithful)
    ][:_MAX_OPERANDS]
    cost = float(faithful.size) * faithful.shape[-2]
    for order in _list_operand_orders(len(arrays), cost):
        q, k, v = (arrays[i] for i in order)
        if q.shape != faithful.shape or k.shape != v.shape:
            continue
        k, v = repeat_groups(k, q.shape[-3]), repeat_groups(v, q.shape[-3])
        n_scores = q.shape[-2], k.shape[-2]
        recorded_masks: list[AnyArray] = []
        for mask in list_masks(case.operands, faithful, n_scores)[:_MAX_MASKS]:
            recorded_masks.append(mask.array)
            if mask.array.dtype == bool:
                recorded_masks.append(~mask.array)
        for number, hidden in enumerate((make_causal_mask(*n_scores), None, *recorded_masks)):
            for scale in (q.shape[-1] ** -0.5, 1.0):
                output = attention(q, k, v, scale, hidden)
                if case.matches_faithful(output):
                    return AttentionCall(q, k, v, scale, hidden, output, is_recorded=number > 1)
    return None


def list_masks(
    operands: Sequence[Operand], output: AnyArray, score_shape: tuple[int, int]
) -> list[Operand]:
    """Return the operands that may be masks or biases of scores, the smallest first.

    ``output``: of attention (..., heads, length, size); ``score_shape``: queries and keys. Products
    of queries and keys are none.
    """
    masks = [
        operand
        for operand in operands
        if operand.shape[-2:] == score_shape
        and len(operand.shape) <= output.ndim
        and operand.kind not in _SCORE_PRODUCERS
        and not operand.parameter
        and operand.array.dtype.kind in "bf"
        and _broadcasts(operand.shape[:-2], output.shape[:-2])
    ]
    return sorted(masks, key=lambda mask: mask.array.size)


def _broadcasts(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether the axes before queries and keys fit those of an output."""
    if not shape:
        return True
    return all(
        length in (1, other) for length, other in zip(shape, expected[-len(shape) :], strict=True)
    )


def _list_operand_orders(n_arrays: int, cost: float) -> list[tuple[int, ...]]:
    """Return the orders in which operands are tried as q, k and v."""
    if cost >= _MAX_COST or n_arrays < 3:
        return []
    if cost < _MAX_COST_OF_ALL_ORDERS:
        return list(permutations(range(n_arrays), 3))
    return _COMMON_ORDERS


def _has_head_shape(array: AnyArray, output: AnyArray) -> bool:
    """Return whether the array is (..., heads or groups, length, size) for an output of heads."""
    if array.ndim != output.ndim or array.dtype.kind != "f":
        return False
    if array.shape[-2:] != output.shape[-2:]:
        return False
    if array.shape[:-3] != output.shape[:-3]:
        return False
    return output.shape[-3] % array.shape[-3] == 0


#: About masks, masked scores and probabilities themselves.
MASK_HYPOTHESES = (Hypothesis("mask-missing", suggest_mask),)

HYPOTHESES = (
    Hypothesis("softmax-axis", suggest_softmax_axis),
    Hypothesis("scale", suggest_whole_attention),
)
