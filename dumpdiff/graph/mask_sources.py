"""Masks that no recorded op produced, and that follow from values that are known.

No recorder shows PyTorch's ``~mask`` and ``one_hot(indices)``. The masks that are read are the
opposite of one that an op computed, and the places of indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np

from ..model.arrays import AnyArray, Flags, Ints
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import Trace

#: Elements of a mask that is read, and masks that are.
_MAX_ELEMENTS, _MAX_MASKS = 1 << 22, 256
#: Values that are tried as the source of a mask, the latest first.
_MAX_CANDIDATES = 8


def find_mask_sources(
    trace: Trace,
    tensors: Ints,
    sizes: Ints,
    producers: Ints,
    first_reads: Ints,
    is_mask: Flags,
    is_index: Flags,
) -> dict[int, tuple[int, str]]:
    """Return mask -> (value that it follows from, 'opposite' or 'one-hot'), by class.

    All arrays are (classes,): the tensor that stands for a class, its elements, the op that
    produced it, -1 for none, the op that reads it first, and whether it holds zeros and ones or
    integers. The value was computed before the mask is read, or the run was given it.
    """
    masks_of_size = _index_sizes(sizes, is_mask & (producers >= 0))
    indices_of_size = _index_sizes(sizes, is_index)
    leaves = np.flatnonzero(is_mask & (producers < 0) & (first_reads >= 0))
    leaves = leaves[sizes[leaves] <= _MAX_ELEMENTS][:_MAX_MASKS]

    @lru_cache(_MAX_CANDIDATES)  # masks of one size are compared with the same values
    def load(value: int) -> AnyArray | None:
        return load_readable_tensor(trace, int(tensors[value]))

    sources: dict[int, tuple[int, str]] = {}
    for mask in leaves.tolist():
        n_elements = int(sizes[mask])
        if n_elements not in masks_of_size and not _has_divisor(n_elements, indices_of_size):
            continue
        array = load_readable_tensor(trace, int(tensors[mask]))
        if array is None or array.all() or not array.any():
            continue
        wanted = [("opposite", array == 0, masks_of_size.get(n_elements, ()))]
        codes = array.squeeze()
        if codes.ndim > 1 and np.all(np.count_nonzero(codes, axis=-1) == 1):
            places = codes.argmax(axis=-1)
            wanted.append(("one-hot", places, indices_of_size.get(places.size, ())))
        for evidence, numbers, candidates in wanted:
            earlier = [
                value
                for value in candidates
                if value != mask and producers[value] < first_reads[mask]
            ]
            source = _find_equal(load, _sort_latest(earlier, producers), numbers)
            if source >= 0:
                sources[mask] = source, evidence
                break
    return sources


def _index_sizes(sizes: Ints, is_chosen: Flags) -> Mapping[int, list[int]]:
    """Return number of elements -> the chosen values that have it, of several elements."""
    values_of: defaultdict[int, list[int]] = defaultdict(list)
    for value in np.flatnonzero(is_chosen & (sizes > 1)).tolist():
        values_of[int(sizes[value])].append(value)
    return values_of


def _has_divisor(number: int, divisors: Iterable[int]) -> bool:
    return any(number % divisor == 0 and number > divisor for divisor in divisors)


def _sort_latest(values: list[int], producers: Ints) -> list[int]:
    """Return the values of the latest ops."""
    return sorted(values, key=producers.__getitem__)[: -_MAX_CANDIDATES - 1 : -1]


def _find_equal(
    load: Callable[[int], AnyArray | None], values: Iterable[int], numbers: AnyArray
) -> int:
    """Return the first value that holds some numbers in C order, -1 if none does."""
    for value in values:
        other = load(value)
        if other is not None and np.array_equal(other.reshape(-1), numbers.reshape(-1)):
            return value
    return -1
