"""The values of the other run, that relations of a run are proved by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..model.arrays import AnyArray
from ..model.trace import Trace
from .relation import combine_statistics, group_patterns, join_parts
from .siblings import Siblings
from .value_index import ValueIndex


class OtherRun:
    """All stages of a run, with their values by number."""

    def __init__(self, stages: Sequence[Siblings]) -> None:
        self._stages = tuple(stages)
        self._offsets = np.cumsum([0, *(len(stage.rows) for stage in stages)])

    @cached_property
    def index(self) -> ValueIndex:
        """The values of the run by their statistics.

        Of a run of one device these are all values; of several ranks, those that the ranks share,
        and what their different values are together.
        """
        blocks = []
        for stage, offset in zip(self._stages, self._offsets, strict=False):
            is_constant = stage.collect_base("constant").astype(bool)
            for pattern, rows in group_patterns(stage.labels, np.flatnonzero(~is_constant)):
                statistics, sizes = combine_statistics(
                    stage.statistics[rows], stage.sizes[rows], join_parts(pattern)
                )
                blocks.append((sizes, statistics, rows + offset))
        sizes, statistics, entries = (np.concatenate(items) for items in zip(*blocks, strict=True))
        return ValueIndex(sizes, statistics, entries)

    def get_shape(self, entry: int) -> tuple[int, ...] | None:
        """Return the shape of a value on the first rank that has it."""
        stage, row = self._locate(entry)
        rank = int(stage.bases[row])
        shape: tuple[int, ...] | None = (
            stage.flows[rank].tensors["shape"].iat[int(stage.rows[row, rank])]
        )
        return shape

    def is_shared(self, entry: int) -> bool:
        """Return whether all ranks have the value."""
        stage, row = self._locate(entry)
        return len(set(stage.labels[row].tolist()) - {-1}) == 1

    def load(self, entry: int) -> AnyArray | None:
        """Return the whole tensor of a value that all ranks share; None if not, or missing."""
        if not self.is_shared(entry):
            return None
        stage, row = self._locate(entry)
        return load_tensor(stage, row, int(stage.bases[row]))

    def get_sizes(self, column: str) -> dict[str, int]:
        """Return name -> number of elements, of the tensors named in a column.

        Only those that all ranks share are listed.
        """
        sizes: dict[str, int] = {}
        for stage in self._stages:
            names = stage.collect_base(column).tolist()
            for row, name in enumerate(names):
                rank = int(stage.bases[row])
                if name and (stage.labels[row] == rank).all():
                    sizes.setdefault(name, int(stage.sizes[row, rank]))
        return sizes

    def _locate(self, entry: int) -> tuple[Siblings, int]:
        stage = int(np.searchsorted(self._offsets, entry, side="right")) - 1
        return self._stages[stage], int(entry - self._offsets[stage])


def load_tensor(siblings: Siblings, row: int, rank: int) -> AnyArray | None:
    """Return the whole tensor of a rank in its recorded shape; None if it is missing."""
    flow = siblings.flows[rank]
    tensor = int(siblings.rows[row, rank])
    if tensor < 0 or not flow.tensors["file"].iat[tensor]:
        return None
    return load_shaped(flow.trace, tensor)


def load_shaped(trace: Trace, tensor: int) -> AnyArray:
    """Return a whole tensor in its recorded shape, if it has as many elements."""
    array = trace.array(tensor)
    shape = trace.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape):
        array = array.reshape(shape)
    return array
