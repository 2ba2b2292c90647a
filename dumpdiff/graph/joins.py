"""Joins that a recorder leaves out: ``cat`` and ``stack`` of values that were recorded.

The elements of a joined tensor are those of its parts. So their sizes, their sums and the squares
of their norms add up, the largest maximum is its maximum and the smallest minimum its minimum. A
part may be repeated in it, as the positions of a key are for every head.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ..model.arrays import Floats
from .dataflow import Flow

#: Relative difference of norms, and of sums by the size of the elements, of the same numbers that
#: are added up in another order.
_SUMMATION_ERROR = 2e-6
#: Fewer elements have the extremes and the norm of others by chance.
_MIN_SIZE = 8
#: Values with the maximum or minimum of the joined one that are tried, the latest first.
_MAX_CANDIDATES = 16
#: Informative statistics (of 4) from which on sums are evidence. Any two masks with half of their
#: elements set have the sums of a third one.
_MIN_EVIDENCE = 2
#: Ops before the first consumer whose results are tried as parts without an extreme.
_WINDOW = 48
#: Parts of one size that are tried in any combination of recent values: q, k and v; four gates.
_FEW_PARTS = (3, 4)
#: Parts of one size: the steps of a sequence.
_MAX_STEPS = 512
#: Values of one size that a step writes; the parts are that far apart.
_MAX_STRIDE = 24


def find_joined_parts(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the values that a value without a producer was joined from.

    They are in the order of the run, and each of them once. They are computed ones, or sums of
    gradients that an earlier op read. () if none fit: two different values,
    three or four recent ones of one size, as the gates of a recurrent cell, values of one size
    at equal distances, as the steps of an unrolled recurrence, the latest ones that no op reads,
    as the outputs of experts for their own tokens, or those that ops wrote into a tensor. Whole
    tensors show some of the parts, see ``joined_blocks``.
    """
    return _find_by_statistics(flow, value) or flow.joined_blocks.get(value, ())


def _find_by_statistics(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the values that together have the statistics of a value, () if none do."""
    consumers = flow.consumers[value]
    if flow.producers[value] >= 0 or not consumers or flow.sizes[value] < _MIN_SIZE:
        return ()
    if flow.list_column("evidence")[value] < _MIN_EVIDENCE or not flow.may_be_joined[value]:
        return ()
    highest = _list_earlier_values(flow, "max", value)
    lowest = _list_earlier_values(flow, "min", value)
    if not highest or not lowest or not np.isfinite(_get_sums(flow, [value])).all():
        return ()
    for first, second in _iterate_two_parts(flow, value, highest, lowest):
        if _is_joined_from_two(flow, value, first, second):
            return tuple(sorted((first, second), key=flow.get_first_op))
    return (
        _find_few_parts(flow, value, highest, lowest)
        or _find_equal_parts(flow, value, highest, lowest)
        or find_unread_parts(flow, value)
        or _find_assigned_parts(flow, value)
    )


def _list_earlier_values(flow: Flow, name: str, value: int) -> list[int]:
    """Return the smaller earlier values of the phase with an extreme of the value.

    The latest before its first consumer comes first.
    """
    consumer = flow.consumers[value][0]
    number = flow.list_column(name)[value]
    candidates = [
        candidate
        for candidate in flow.list_values_of_extreme(name, flow.phases[consumer], number)
        if flow.get_first_op(candidate) < consumer and flow.sizes[candidate] < flow.sizes[value]
    ]
    return candidates[: -_MAX_CANDIDATES - 1 : -1]


def _iterate_two_parts(
    flow: Flow, value: int, highest: Sequence[int], lowest: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of values that have the extremes of the value between them."""
    for first in highest:
        for second in lowest:
            if first != second:
                yield first, second
    with_both = [candidate for candidate in highest if candidate in lowest]
    if not with_both:
        return
    consumer = flow.consumers[value][0]
    for op in range(consumer - 1, max(-1, consumer - _WINDOW), -1):
        if flow.phases[op] != flow.phases[consumer]:
            continue
        for second in flow.writes[op]:
            for first in with_both:
                if first != second:
                    yield first, second


def _is_joined_from_two(flow: Flow, value: int, first: int, second: int) -> bool:
    """Return whether a value has the elements of two others, one of them possibly repeated."""
    size = int(flow.sizes[value])
    for once, repeated in ((first, second), (second, first)):
        once_size, repeated_size = int(flow.sizes[once]), int(flow.sizes[repeated])
        if once_size < 1 or repeated_size < 1:  # unknown, or an expert without a token
            return False
        count, remainder = divmod(size - once_size, repeated_size)
        if remainder or count < 1:
            continue
        if _has_sums(flow, value, _get_sums(flow, [once, *[repeated] * count])):
            return True
    return False


def _find_few_parts(
    flow: Flow, value: int, highest: Sequence[int], lowest: Sequence[int]
) -> tuple[int, ...]:
    """Return three or four recent values of one size that a value has the elements of."""
    consumer = flow.consumers[value][0]
    for n_parts in _FEW_PARTS:
        part_size, remainder = divmod(int(flow.sizes[value]), n_parts)
        with_highest = [part for part in highest if flow.sizes[part] == part_size]
        with_lowest = [part for part in lowest if flow.sizes[part] == part_size]
        if remainder or not with_highest or not with_lowest:
            continue
        candidates = [
            candidate
            for candidate in flow.values_by_size.get((flow.phases[consumer], part_size), ())
            if flow.producers[candidate] < consumer
        ][-_MAX_CANDIDATES:]
        for parts in combinations(candidates, n_parts):
            has_extremes = not (
                set(parts).isdisjoint(with_highest) or set(parts).isdisjoint(with_lowest)
            )
            if has_extremes and _has_sums(flow, value, _get_sums(flow, parts)):
                return parts
    return ()


def _find_equal_parts(
    flow: Flow, value: int, highest: Sequence[int], lowest: Sequence[int]
) -> tuple[int, ...]:
    """Return the values of one size at equal distances that a value has the elements of."""
    size = int(flow.sizes[value])
    consumer = flow.consumers[value][0]
    part_sizes = {int(flow.sizes[part]) for part in highest}
    part_sizes &= {int(flow.sizes[part]) for part in lowest}
    for part_size in sorted(part_sizes, reverse=True):
        n_parts, remainder = divmod(size, max(part_size, 1))
        if remainder or not 2 < n_parts <= _MAX_STEPS:
            continue
        candidates = [
            candidate
            for candidate in flow.values_by_size.get((flow.phases[consumer], part_size), ())
            if flow.producers[candidate] < consumer
        ][-n_parts * _MAX_STRIDE :]
        for stride in range(1, min(_MAX_STRIDE, (len(candidates) - 1) // (n_parts - 1)) + 1):
            for last in range(len(candidates) - 1, len(candidates) - 1 - stride, -1):
                parts = candidates[last::-stride][:n_parts]
                is_complete = len(parts) == n_parts
                if is_complete and _has_sums(flow, value, _get_sums(flow, parts)):
                    return tuple(reversed(parts))
    return ()


def find_unread_parts(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the latest values that the loss depends on and no op reads, of any sizes.

    () if a value does not have the elements of all of them.
    """
    if flow.list_column("evidence")[value] < _MIN_EVIDENCE:
        return ()
    consumer = flow.consumers[value][0]
    n_earlier = bisect_left(flow.unread_values, consumer, key=flow.producers.__getitem__)
    parts: list[int] = []
    size = 0
    for candidate in reversed(flow.unread_values[max(0, n_earlier - _MAX_STEPS) : n_earlier]):
        if size >= flow.sizes[value]:
            break
        if flow.sizes[candidate] > 0:
            parts.append(candidate)
            size += int(flow.sizes[candidate])
    is_complete = len(parts) > 1 and size == flow.sizes[value]
    if is_complete and _has_sums(flow, value, _get_sums(flow, parts)):
        return tuple(reversed(parts))
    return ()


def _find_assigned_parts(flow: Flow, value: int) -> tuple[int, ...]:
    """Return the latest values that ops wrote into parts of a tensor: x[i] = y.

    () if a value does not have the elements of all of them.
    """
    assigned = [op for op in flow.assignments if op < flow.consumers[value][0]]
    parts: list[int] = []
    size = 0
    for op in reversed(assigned[-_MAX_STEPS:]):
        if size >= flow.sizes[value]:
            break
        written_values = [
            part for part in flow.reads[op] if 0 < flow.sizes[part] < flow.sizes[value]
        ]
        if len(written_values) != 1:
            return ()
        parts += written_values
        size += int(flow.sizes[written_values[0]])
    is_complete = len(parts) > 1 and size == flow.sizes[value]
    if is_complete and _has_sums(flow, value, _get_sums(flow, parts)):
        return tuple(reversed(parts))
    return ()


def _get_sums(flow: Flow, values: Sequence[int]) -> Floats:
    """Return (4,) the sum of the squares and of the elements, the maximum and the minimum."""
    sizes, norms = flow.sizes[list(values)], flow.norms[list(values)]
    means = np.array([flow.list_column("mean")[value] for value in values], dtype=float)
    highs = [flow.list_column("max")[value] for value in values]
    lows = [flow.list_column("min")[value] for value in values]
    return np.array([np.square(norms).sum(), (means * sizes).sum(), max(highs), min(lows)])


def _has_sums(flow: Flow, value: int, sums: Floats) -> bool:
    """Return whether the statistics of a value are those of its parts together."""
    square, total, high, low = _get_sums(flow, [value])
    total_scale = np.sqrt(square * flow.sizes[value])
    return bool(
        high == sums[2]
        and low == sums[3]
        and abs(square - sums[0]) <= 2 * _SUMMATION_ERROR * square
        and abs(total - sums[1]) <= _SUMMATION_ERROR * total_scale
    )
