"""A value that is split into parts of different widths, read in another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from ....model.arrays import AnyArray
from ...fault_case import FaultCase
from ...region import Region, Step, StepInput
from .change import Change, list_floating_inputs

#: Parts whose orders are tried.
_MAX_PARTS = 4
_PROJECTIONS = {"matmul", "addmm"}


@dataclass(frozen=True, eq=False)
class _Split:
    """A value whose last axis is split at some columns, in each of its blocks (heads)."""

    whole: StepInput
    block_width: int
    edges: tuple[int, ...]  #: columns at which the parts begin, and the block's width
    read_parts: tuple[tuple[int, int], ...]  #: (first column, end)

    @property
    def widths(self) -> list[int]:
        """Return the widths of the parts."""
        return [end - start for start, end in pairwise(self.edges)]

    def is_moved_window(self, order: tuple[int, ...]) -> bool:
        """Return whether an order moves the one part that is read by less than its own width.

        That is no other order of parts, see ``windows``. Two parts: see :func:`_describe_order`.
        """
        if len(self.read_parts) > 1 or len(order) <= 2:
            return False
        start, end = self.read_parts[0]
        first = self.edges.index(start)
        new_start = sum(self.widths[part] for part in order[: order.index(first)])
        return abs(new_start - start) < end - start

    def reorder(self, order: tuple[int, ...]) -> AnyArray:
        """Return the value with each part taken from where it is if the parts have this order."""
        blocks = self.whole.array.reshape(-1, self.block_width)
        starts, start = {}, 0
        for part in order:
            starts[part] = start
            start += self.widths[part]
        columns = [
            np.arange(starts[part], starts[part] + width) for part, width in enumerate(self.widths)
        ]
        reordered: AnyArray = blocks[:, np.concatenate(columns)]
        return reordered.reshape(self.whole.array.shape)


def list_split_orders(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Split a value into the same parts in another order. Parts of one width: see ``orders``."""
    last = len(region.steps) - 1
    for split in _find_splits(region):
        n_parts = len(split.widths)
        if not 1 < n_parts <= _MAX_PARTS or len(set(split.widths)) == 1:
            continue
        for order in permutations(range(n_parts)):
            if list(order) == sorted(order) or split.is_moved_window(order):
                continue
            cause, text, contrast = _describe_order(split, order)
            yield Change(
                last,
                region.steps[last].output,
                cause,
                text,
                contrast,
                replaced_values={split.whole.value: split.reorder(order)},
            )


def _describe_order(split: _Split, order: tuple[int, ...]) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of another order of the parts.

    The longer of two parts, if it alone is read, is a slice: in another order, it begins some
    columns before or after. What a projection gives is split into parts, unless it is one column.
    """
    name = split.whole.name
    start, end = split.read_parts[0]
    width = end - start
    is_slice = width + 1 == split.block_width or (
        split.whole.producer_kind not in _PROJECTIONS and 2 * width > split.block_width
    )
    if is_slice and len(split.read_parts) == 1 and len(split.widths) == 2:
        first, last = f"the first {width} columns of {name}", f"the last {width} columns of {name}"
        text, other_text = (last, first) if start == 0 else (first, last)
        return "row-shift", text, f"reads {other_text}"
    widths = ", ".join(str(width) for width in split.widths)
    text = f"the parts of {name} ({widths} columns) in the order {list(order)}"
    return "split-order", text, f"has the order {sorted(order)}"


def list_rows_by_head(case: FaultCase, region: Region) -> Iterator[Change]:
    """Read a fused projection head by head, not part by part, or the other way round.

    Queries, keys and values of all heads follow one another, or those of each head.
    """
    last = len(region.steps) - 1
    lengths = {length for step in region.steps for length in step.output.shape[:-1]}
    lengths |= set(case.faithful.shape[:-1])
    for split in _find_splits(region):
        n_parts, width = len(split.widths), split.whole.array.shape[-1]
        if not 1 < n_parts <= _MAX_PARTS or len(set(split.widths)) > 1:
            continue
        reads_heads = split.block_width < width
        head_counts = [width // split.block_width] if reads_heads else sorted(lengths)
        for n_heads in head_counts:
            if n_heads < 2 or width // n_parts % n_heads or n_heads == width // n_parts:
                continue
            shape = (n_parts, n_heads, -1) if reads_heads else (n_heads, n_parts, -1)
            columns = np.arange(width).reshape(shape).swapaxes(0, 1).reshape(-1)
            name = split.whole.name
            texts = (
                f"{name} read part by part ({n_parts} parts of {n_heads} heads)",
                f"{name} read head by head ({n_parts} parts of {n_heads} heads)",
            )
            contrasts = ("reads it part by part", "reads it head by head")
            yield Change(
                last,
                region.steps[last].output,
                "split-order",
                texts[not reads_heads],
                contrasts[reads_heads],
                replaced_values={split.whole.value: split.whole.array[..., columns]},
            )


def _find_splits(region: Region) -> list[_Split]:
    """Return the values of which steps of a region read parts."""
    wholes: dict[int, StepInput] = {}
    parts: dict[int, set[tuple[int, int, int]]] = {}
    for step in region.steps:
        part = _find_part(step)
        if part is None:
            continue
        _, whole = list_floating_inputs(step)[0]
        first_whole = wholes.setdefault(whole.value, whole)
        if np.array_equal(first_whole.array, whole.array):
            parts.setdefault(whole.value, set()).add(part)
    splits = []
    for value, read_parts in parts.items():
        block_width = max(width for width, *_ in read_parts)
        edges = {0, block_width}
        for width, start, end in read_parts:
            if width == block_width:
                edges |= {start, end}
        columns = tuple(
            (start, end) for width, start, end in sorted(read_parts) if width == block_width
        )
        splits.append(_Split(wholes[value], block_width, tuple(sorted(edges)), columns))
    return splits


def _find_part(step: Step) -> tuple[int, int, int] | None:
    """Return (block width, first column, end) of the part that a step reads of a computed value.

    A block is the whole last axis, or one of its equal pieces (heads). None if a step reads no
    part, or several columns that are not next to one another, or of a convolution, whose last axis
    are places.
    """
    inputs = list_floating_inputs(step)
    if step.places is None or len(inputs) != 1 or inputs[0][1].value < 0:
        return None
    if inputs[0][1].producer_kind == "convolution":
        return None
    width = inputs[0][1].array.shape[-1]
    if step.places.min() < 0:
        return None
    is_read = np.zeros(width, bool)
    is_read[step.places % width] = True
    if is_read.all():
        return None
    block_widths = [length for length in range(2, width + 1) if width % length == 0]
    for block_width in block_widths:
        blocks = is_read.reshape(-1, block_width)
        if np.all(blocks == blocks[0]):
            columns = np.flatnonzero(blocks[0])
            start, end = int(columns[0]), int(columns[-1]) + 1
            return (block_width, start, end) if len(columns) == end - start else None
    return None
