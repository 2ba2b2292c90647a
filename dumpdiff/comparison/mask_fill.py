"""Mask fill: which values may hold it, which elements are it, and which statistics it decides.

Masked elements hold a constant that replaces minus infinity: -1e4, -65504, -1e9, the lowest number
of the dtype, or -inf. The frameworks choose different ones, and all mean the same to a softmax:
exp(x - max) is 0 for x 104 (float32) or 746 (float64) below the largest element. Before a minimum,
as that of the distances to images of other people, 1e9 or inf does the same from above. So such
elements are set aside, but only

- in values that feed a softmax or the like, or that a where or masked_fill writes or fills with;
- where both sides have fill at the same position, ``MASK_MAGNITUDE`` or more in magnitude, of one
  sign and far from all other elements of their tensor.

Everywhere else a large number is compared like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..alignment.values import Fingerprints
from ..graph import Flow
from ..graph.statistics import STATISTICS
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import MASK_GAP, MASK_MAGNITUDE, is_floating
from ..model.trace import BACKWARD, flag_words
from ..rulebook import Rules
from .op_kinds import OpKinds

#: Kinds to whose result a masked element contributes nothing, besides those of class softmax. A
#: written-out softmax reads its scores in exp.
_READING_KINDS = frozenset({"exp", "logsumexp", "cross_entropy", "topk"})
_READING_CLASS = "softmax"
#: Inputs of an attention operator that are no masks: query, key and value.
_ATTENTION_KIND, _ATTENTION_OPERANDS = "attention", ("input.0", "input.1", "input.2")
#: Kinds that put fill, or another value, where a mask says so.
FILLING_KINDS = frozenset({"where", "masked_fill"})
#: Kinds that leave fill in its place, besides those that only move elements.
_KEEPING_KINDS = FILLING_KINDS | {
    "add", "sub", "mul", "div", "maximum", "minimum", "clamp", "tril", "triu", "setitem",
}  # fmt: skip
#: In a tensor with fill, no other element is larger in magnitude than half of the weakest fill.
_GAP_SHARE = 0.5
#: Elements per block.
_BLOCK = 1 << 15
#: The share of fill elements is the mean over the constant. The other elements, at most 1e-3 of the
#: constant, and scores on top of it, at most 1 %, change it by less than this.
_MAX_SHARE_DIFFERENCE = 0.02
#: Takes the place of the number of elements set aside where only statistics are known.
STATISTICS_SET_ASIDE = -1
#: Two constants are the same one if they differ by less: scores lie on top of a weak constant.
_SAME_CONSTANT = 1e-2


def flag_mask_fill(flow: Flow, kinds: tuple[str, ...], rules: Rules) -> Flags:
    """Return (classes,) true for floating values of the forward pass that may hold mask fill.

    These are the values that a softmax (or top-k, cross entropy, an attention's mask input) reads,
    and the outputs and constant fills of where and masked_fill, each with everything from which it
    was computed by moving, casting, adding or multiplying elements. A value with fill and the same
    statistics as one of these is the same mask, read by a module call: masks are not joined to one
    class by value. ``kinds`` has the canonical kind of every op.
    """
    lows, highs = flow.classes["min"].to_numpy(), flow.classes["max"].to_numpy()
    may_be_fill = ~((lows > -MASK_MAGNITUDE) & (highs < MASK_MAGNITUDE))
    may_be_fill &= flag_words(flow.classes["dtype"], is_floating)
    if not may_be_fill.any():
        return may_be_fill
    op_kinds = OpKinds.from_names(kinds)
    is_relevant = _flag_forward_ops(flow)
    keeping_ops = is_relevant & op_kinds.flag(
        lambda kind: kind in _KEEPING_KINDS or bool(rules.get_layout(kind))
    )
    reading_ops = is_relevant & op_kinds.flag(
        lambda kind: kind in _READING_KINDS or rules.get_kind_class(kind) == _READING_CLASS
    )
    other_ops = op_kinds.flag(lambda kind: kind == _ATTENTION_KIND or kind in FILLING_KINDS)
    pending = flow.list_reads(np.flatnonzero(reading_ops))[0].tolist()
    for op in np.flatnonzero(is_relevant & other_ops & ~reading_ops).tolist():
        pending += _list_filled_values(flow, op, kinds[op])
    flags = np.zeros(len(flow.classes), dtype=bool)
    producers = flow.producers.tolist()
    while pending:
        value = pending.pop()
        if flags[value]:
            continue
        flags[value] = True
        producer = producers[value]
        if producer >= 0 and keeping_ops[producer]:
            pending += flow.reads[producer]
    flags |= _flag_equal_masks(flow, flags)
    flags &= flag_words(flow.classes["dtype"], is_floating)
    return flags


def _flag_equal_masks(flow: Flow, flags: Flags) -> Flags:
    """Return (classes,) true for values with fill that have the statistics of a flagged one."""
    lows, highs = flow.classes["min"].to_numpy(), flow.classes["max"].to_numpy()
    rows = np.flatnonzero((lows <= -MASK_MAGNITUDE) | (highs >= MASK_MAGNITUDE))
    columns = flow.classes.loc[rows, ["size", *STATISTICS]].fillna(0.0)
    keys = list(columns.itertuples(index=False, name=None))
    flagged_keys = {key for row, key in zip(rows, keys, strict=True) if flags[row]}
    equal_masks = np.zeros(len(flags), dtype=bool)
    equal_masks[rows] = [key in flagged_keys for key in keys]
    return equal_masks


def _flag_forward_ops(flow: Flow) -> Flags:
    """Return (ops,) true for all ops but those that compute gradients."""
    ops = flow.trace.ops
    is_forward: Flags = (ops["phase"].to_numpy() != BACKWARD) | ops["recomputed"].to_numpy()
    return is_forward


def _list_filled_values(flow: Flow, op: int, kind: str) -> list[int]:
    """Return the values that may hold mask fill because an attention or a fill has them."""
    if kind == _ATTENTION_KIND:
        values = []
        for row in flow.get_tensor_ids(op).tolist():
            is_mask = flow.tensors["slot_kind"].iat[row] == "input"
            is_mask &= flow.tensors["slot"].iat[row] not in _ATTENTION_OPERANDS
            if is_mask and flow.tensor_class[row] >= 0:
                values.append(int(flow.tensor_class[row]))
        return values
    highs, lows = flow.list_column("max"), flow.list_column("min")
    fills = [value for value in flow.reads[op] if highs[value] == lows[value]]
    return [*flow.writes[op], *fills]


def find_fill_limit(array: AnyArray) -> float:
    """Return the number from which on elements are fill (see :func:`flag_fill`), 0 if none are.

    It is negative for fill below all other elements and positive for fill above them. Fill is
    ``MASK_MAGNITUDE`` or more in magnitude, and far from the finite elements that are not. If there
    are elements in between, as in a model whose scores explode, only what is far from these is
    fill, or infinities alone. Integers have no fill.
    """
    if array.dtype.kind != "f":
        return 0.0
    flat = np.ravel(array, order="K")  # in the order of memory, so that a view is not copied
    return _find_low_limit(flat, 1) or -_find_low_limit(flat, -1)


def flag_fill(values: AnyArray, limit: float) -> Flags:
    """Return which values are fill, with the limit of their tensor."""
    if limit == 0:
        return np.zeros(values.shape, dtype=bool)
    is_fill: Flags = values <= limit if limit < 0 else values >= limit
    return is_fill


def _find_low_limit(flat: AnyArray, sign: int) -> float:
    """Return the number at or below which elements times ``sign`` are fill, 0 if none are."""
    fill = _measure_fill(flat, sign, -MASK_MAGNITUDE)
    if not fill.is_far and fill.lowest * _GAP_SHARE <= -MASK_MAGNITUDE:
        fill = _measure_fill(flat, sign, fill.lowest * _GAP_SHARE)
    if fill.is_far:
        return fill.limit
    return -np.inf if fill.has_infinity else 0.0


@dataclass(frozen=True)
class _Fill:
    """The elements of a tensor, times a sign, at or below a limit, and the others."""

    limit: float
    lowest: float  #: the lowest finite element at or below the limit, 0 if there is none
    weakest: float  #: the highest element at or below the limit, -Inf if there is none
    peak: float  #: magnitude of the largest finite element above the limit
    has_infinity: bool  #: whether an element is -Inf

    @property
    def is_far(self) -> bool:
        """Whether there is finite fill, far from all other elements."""
        return self.weakest > -np.inf and self.peak <= -_GAP_SHARE * self.weakest


def _measure_fill(array: AnyArray, sign: int, limit: float) -> _Fill:
    lowest, weakest, peak, has_infinity = 0.0, -np.inf, 0.0, False
    for start in range(0, array.size, _BLOCK):
        block = array[start : start + _BLOCK] if sign > 0 else -array[start : start + _BLOCK]
        low, high = float(block.min()), float(block.max())
        if limit < low and high < np.inf:  # false if there is a NaN
            peak = max(peak, high, -low)
            continue
        is_fill = block <= limit
        others = np.where(is_fill, 0, block)
        block_peak = float(np.abs(others).max())
        if not np.isfinite(block_peak):
            block_peak = float(np.abs(others[np.isfinite(others)]).max(initial=0.0))
        peak = max(peak, block_peak)
        is_infinite = block == -np.inf
        has_infinity |= bool(is_infinite.any())
        fill = block[is_fill & ~is_infinite]
        if fill.size:
            weakest = max(weakest, float(fill.max()))
            lowest = min(lowest, float(fill.min()))
    return _Fill(limit, lowest, weakest, peak, has_infinity)


def set_aside_fill(
    target: Fingerprints, rows_t: Ints, reference: Fingerprints, rows_r: Ints, is_candidate: Flags
) -> tuple[Fingerprints, Fingerprints, Flags]:
    """Return the statistics of both sides, by pair, without those that mask fill decides.

    ``is_candidate`` (pairs,) is true where a value may hold fill. Where the extremes of both sides
    are fill of one sign and differ, or are infinite, these extremes, the means and norms depend on
    the constant: they become NaN, so that the other extreme alone is compared. The flags tell
    where. Nothing is set aside if the means show that the sides have different numbers of fill
    elements.
    """
    prints_t, prints_r = target.take(rows_t), reference.take(rows_r)
    is_low = is_candidate & _flag_other_constant(prints_t, prints_r)
    is_high = is_candidate & _flag_other_constant(_negate(prints_t), _negate(prints_r))
    is_high &= ~is_low
    return _drop(prints_t, is_low, is_high), _drop(prints_r, is_low, is_high), is_low | is_high


def _flag_other_constant(prints_t: Fingerprints, prints_r: Fingerprints) -> Flags:
    """Return (pairs,) true where the low extremes are fill, as much on both sides, that differs."""
    with np.errstate(all="ignore"):
        is_fill = _flag_fill_extreme(prints_t) & _flag_fill_extreme(prints_r)
        difference = np.abs(prints_t.low - prints_r.low)
        is_same = np.isfinite(prints_r.low) & (difference <= _SAME_CONSTANT * np.abs(prints_r.low))
        # next to fill all other elements are 0; Inf / Inf and unknown means compare as false
        share_t, share_r = prints_t.mean / prints_t.low, prints_r.mean / prints_r.low
        has_other_share = np.abs(share_t - share_r) > _MAX_SHARE_DIFFERENCE
    is_set_aside: Flags = is_fill & ~is_same & ~has_other_share
    return is_set_aside


def _flag_fill_extreme(prints: Fingerprints) -> Flags:
    is_far: Flags = np.abs(prints.low) > MASK_GAP * np.abs(prints.high)
    return (prints.low <= -MASK_MAGNITUDE) & is_far


def _negate(prints: Fingerprints) -> Fingerprints:
    return replace(prints, high=-prints.low, low=-prints.high, mean=-prints.mean)


def _drop(prints: Fingerprints, is_low: Flags, is_high: Flags) -> Fingerprints:
    """Return the fingerprints without mean, norm and the extreme that is fill, in some rows."""

    def drop(values: Floats, is_dropped: Flags) -> Floats:
        return np.where(is_dropped, np.nan, values)

    return replace(
        prints,
        high=drop(prints.high, is_high),
        low=drop(prints.low, is_low),
        mean=drop(prints.mean, is_low | is_high),
        norm=drop(prints.norm, is_low | is_high),
    )
