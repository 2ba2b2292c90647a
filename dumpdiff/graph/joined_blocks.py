"""Values that an unrecorded ``cat`` made of others, found by their numbers.

No recorder of APIs shows ``torch.cat``. What it reads is then a result that no recorded op reads,
and is a block of a later value along one axis. The sums of statistics show that only where all
parts are recorded, see ``joins``; whole tensors show it for each part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from ..model.arrays import AnyArray, Flags, Ints
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import Trace

#: Ops between the one that wrote a part and the first one that reads the whole.
_WINDOW = 96
#: Elements of a whole, fewest elements of a part, and values that are tried as wholes.
_MAX_ELEMENTS, _MIN_ELEMENTS, _MAX_WHOLES = 1 << 22, 8, 256
#: Arrays that are kept in memory.
_MAX_LOADED = 16

#: (axis, shape without this axis)
_Key = tuple[int, tuple[int, ...]]


def find_joined_blocks(
    trace: Trace,
    tensors: Ints,
    shapes: Sequence[tuple[int, ...] | None],
    producers: Ints,
    first_reads: Ints,
    is_unread: Flags,
    is_whole: Flags,
) -> dict[int, tuple[int, ...]]:
    """Return whole -> the recorded parts that it was joined from, in the order of their blocks.

    All columns are (classes,): the tensor that stands for a class, its shape, the op that produced
    it, -1 for none, the first op that reads it, whether it was computed and no recorded op reads
    it, and whether it may be a whole. Each whole has a part that is not read otherwise.
    """

    @lru_cache(_MAX_LOADED)
    def load(value: int) -> AnyArray | None:
        return load_readable_tensor(trace, int(tensors[value]))

    def find_blocks(whole: int, axis: int, parts_of: Mapping[_Key, list[int]]) -> dict[int, int]:
        """Return part -> where its block begins along an axis, of recent parts."""
        first_op = first_reads[whole] - _WINDOW
        starts = {
            part: _find_block(load(whole), load(part), axis)
            for part in parts_of.get((axis, _remove_axis(shapes[whole] or (), axis)), ())
            if first_op <= producers[part] < first_reads[whole]
        }
        return {part: start for part, start in starts.items() if start >= 0}

    unread_parts_of = _index_shapes(shapes, is_unread)
    joined: dict[int, tuple[int, ...]] = {}
    if not unread_parts_of:
        return joined
    parts_of = _index_shapes(shapes, producers >= 0)
    for whole in np.flatnonzero(is_whole)[:_MAX_WHOLES].tolist():
        shape = shapes[whole] or ()
        if math.prod(shape) > _MAX_ELEMENTS:
            continue
        for axis in range(len(shape)):
            if find_blocks(whole, axis, unread_parts_of):
                start_of = find_blocks(whole, axis, parts_of)
                joined[whole] = tuple(sorted(start_of, key=start_of.__getitem__))
                break
    return joined


def _index_shapes(
    shapes: Sequence[tuple[int, ...] | None], is_part: Flags
) -> Mapping[_Key, list[int]]:
    """Return (axis, rest of the shape) -> the parts that can be joined along that axis."""
    parts_of: defaultdict[_Key, list[int]] = defaultdict(list)
    for part in np.flatnonzero(is_part).tolist():
        shape = shapes[part]
        if shape is not None and len(shape) > 1 and math.prod(shape) >= _MIN_ELEMENTS:
            for axis in range(len(shape)):
                parts_of[axis, _remove_axis(shape, axis)].append(part)
    return parts_of


def _remove_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _find_block(whole: AnyArray | None, part: AnyArray | None, axis: int) -> int:
    """Return where the only block of a whole along an axis begins that is a part, -1 if none is.

    A part of equal numbers is found by chance.
    """
    if whole is None or part is None or not part.shape[axis] < whole.shape[axis]:
        return -1
    if (part == part.flat[0]).all():
        return -1
    starts = list_block_starts(whole, part, axis)
    return starts[0] if len(starts) == 1 else -1


def list_block_starts(whole: AnyArray, part: AnyArray, axis: int) -> list[int]:
    """Return where the blocks of a whole along an axis begin that hold the numbers of a part.

    A block is as many columns of the whole with its axes before ``axis`` as rows, the others as
    columns; these are what the starts count. The part has a multiple of as many elements as rows.
    """
    n_rows = math.prod(whole.shape[:axis])
    rows, block = whole.reshape(n_rows, -1), part.reshape(n_rows, -1)
    width = block.shape[1]
    return [
        start
        for start in range(0, rows.shape[1] - width + 1, math.prod(whole.shape[axis + 1 :]))
        if rows[0, start] == block[0, 0] and np.array_equal(rows[:, start : start + width], block)
    ]
