"""The values of the other run, that relations of a run are proved by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from ..model.trace import Trace
from .kinds import list_kind_keys
from .relation import Relation, add_parts, combine_statistics, group_patterns, join_parts
from .sibling_tensors import Siblings
from .value_index import ValueIndex


class OtherRun:
    """All stages of a run, with their values by number."""

    def __init__(self, stages: Sequence[Siblings], gradient_factor: float = 1.0) -> None:
        """Take the stages; gradients of slices of the batch are multiplied by the factor."""
        self._stages = tuple(stages)
        self._gradient_factor = gradient_factor
        self._offsets = np.cumsum([0, *(len(stage.rows) for stage in stages)])

    @cached_property
    def index(self) -> ValueIndex:
        """The values of the run by their statistics.

        Of a run of one device these are all values; of several ranks, those that the ranks share,
        and what their different values are together.
        """
        blocks = []
        for stage, offset in zip(self._stages, self._offsets, strict=False):
            for pattern, rows in group_patterns(stage.labels, np.flatnonzero(~stage.is_constant)):
                relation = join_parts(pattern)
                statistics, sizes = combine_statistics(
                    stage.statistics[rows], stage.sizes[rows], relation
                )
                if len(relation.parts) > 1:
                    statistics[stage.is_backward[rows]] *= self._gradient_factor
                blocks.append((sizes, statistics, rows + offset))
        sizes, statistics, entries = (np.concatenate(items) for items in zip(*blocks, strict=True))
        return ValueIndex(sizes, statistics, entries)

    @property
    def is_whole(self) -> bool:
        """Whether one rank of each stage holds all of it."""
        return all(stage.n_ranks == 1 for stage in self._stages)

    @cached_property
    def largest_ids(self) -> int:
        """The largest number of tokens, labels or positions that a rank is given."""
        return max(int(stage.sizes[stage.is_given_id].max(initial=0)) for stage in self._stages)

    @cached_property
    def sizes(self) -> frozenset[int]:
        """The numbers of elements of all values that one rank holds."""
        return frozenset(size for stage in self._stages for size in np.unique(stage.sizes).tolist())

    @cached_property
    def sizes_of_kinds(self) -> dict[tuple[str, ...], set[int]]:
        """Kind -> the numbers of elements that a rank holds of values of that kind."""
        sizes: dict[tuple[str, ...], set[int]] = {}
        for stage in self._stages:
            stage_sizes = stage.sizes.max(axis=1).tolist()
            for key, size in zip(list_kind_keys(stage), stage_sizes, strict=True):
                sizes.setdefault(key, set()).add(size)
        return sizes

    @cached_property
    def shapes(self) -> frozenset[tuple[int, ...]]:
        """The shapes of all values that one rank holds."""
        shapes = set()
        for stage in self._stages:
            shapes |= set(stage.collect_base("shape").tolist())
        return frozenset(shapes - {None})

    @cached_property
    def sorted_shapes(self) -> frozenset[tuple[int, ...]]:
        """The shapes of all values that one rank holds, with their axes in order."""
        return frozenset(tuple(sorted(shape)) for shape in self.shapes)

    @cached_property
    def whole_parameters(self) -> dict[int, tuple[int, ...]]:
        """Entry -> shape of each parameter that all ranks hold, once for each name."""
        shapes: dict[int, tuple[int, ...]] = {}
        names: set[str] = set()
        for stage, offset in zip(self._stages, self._offsets, strict=False):
            for row, name in enumerate(stage.collect_base("parameter").tolist()):
                entry = int(row + offset)
                if not name or name in names or not self.is_shared(entry):
                    continue
                names.add(name)
                shape = self.get_shape(entry)
                if shape is not None:
                    shapes[entry] = shape
        return shapes

    def get_parameter_name(self, entry: int) -> str:
        """Return the name of a parameter, '' if the value is none."""
        stage, row = self._locate(entry)
        return str(stage.collect_base("parameter")[row])

    def find_combined(
        self,
        siblings: Siblings,
        rows: Ints,
        patterns: Ints,
        groups: tuple[int, ...] | None = None,
        factor: float = 1.0,
    ) -> Iterator[tuple[Relation, Ints, Ints]]:
        """Look for what rows of sibling tensors make up among the values of this run.

        ``patterns`` (tensors, ranks) say which ranks have the same numbers. Values are added up
        within ``groups``, or without them concatenated. Yields relations, each with its rows and
        the entry of the value that each equals, -1 if there is none.
        """
        for pattern, pattern_rows in group_patterns(patterns, rows):
            if groups is None:
                relation: Relation | None = join_parts(pattern, factor)
            else:
                relation = add_parts(pattern, groups, factor)
            if relation is None or not relation.parts:
                continue
            statistics, sizes = combine_statistics(
                siblings.statistics[pattern_rows], siblings.sizes[pattern_rows], relation
            )
            entries = self.index.find(sizes, statistics, siblings.match_errors[pattern_rows])
            yield relation, pattern_rows, entries

    def find_whole(self, statistics: Floats, size: int, error: float) -> int:
        """Return the entry of one value by its (4,) statistics, -1 if there is none."""
        entries = self.index.find(np.array([size]), statistics[None], np.array([error]))
        return int(entries[0])

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

    def list_possible_sizes(self, column: str) -> dict[str, set[int]]:
        """Return name -> possible numbers of elements, of the tensors named in a column.

        Only those that all ranks share are listed: they are replicated, or shards of one repeated
        number, which are cut like the weight of the same module.
        """
        sizes: dict[str, set[int]] = {}
        for stage in self._stages:
            names = stage.collect_base(column).tolist()
            for row, name in enumerate(names):
                rank = int(stage.bases[row])
                if not name or not (stage.labels[row] == rank).all() or name in sizes:
                    continue
                size = int(stage.sizes[row, rank])
                sizes[name] = {size}
                if stage.is_repeated[row]:
                    sizes[name].add(size * len(set(stage.get_module_pattern(name))))
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
