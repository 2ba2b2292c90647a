"""Whole tensors of sibling ranks: added up and concatenated when they are loaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray
from ..model.dtypes import is_floating
from ..model.trace import Trace
from .other_run import load_shaped
from .relation import Relation, add_arrays
from .sibling_tensors import Siblings
from .slices import Assembly


@dataclass(frozen=True)
class Shards:
    """Which ranks hold which elements of a whole tensor."""

    names: tuple[str, ...]  #: of the ranks that hold each part; '' of those that hold none
    parts: AnyArray  #: the number of the part that each element belongs to


@dataclass(frozen=True, eq=False)
class CombinedTensor:
    """How a whole tensor is made from those of the ranks."""

    file: str  #: that stands for it in the merged trace
    parts: tuple[tuple[tuple[Trace, int], ...], ...]  #: summands of each part
    factor: float
    assembly: Assembly | None
    #: of the ranks that hold each part, '' if it is a sum; a last '' stands for ranks of which no
    #: part was taken
    holders: tuple[str, ...]

    def find_shards(self) -> Shards | None:
        """Return which ranks hold which elements; None if all ranks hold all, or of a sum."""
        is_of_some_ranks = len(self.parts) == 1 and len(self.holders) > 1
        has_sum = "" in self.holders[: len(self.parts)]
        if has_sum or (self.assembly is None and not is_of_some_ranks):
            return None
        parts = []
        for number, tensors in enumerate(self.parts):
            trace, tensor = tensors[0]
            parts.append(np.full(load_shaped(trace, tensor).shape, number, dtype=np.int16))
        whole = parts[0] if self.assembly is None else self.assembly.join(parts)
        return Shards(self.holders, whole)

    def load(self) -> AnyArray:
        """Return the combined tensor."""
        parts = []
        for tensors in self.parts:
            arrays = [load_shaped(trace, tensor) for trace, tensor in tensors]
            parts.append(add_arrays(arrays, range(len(arrays))))
        combined = parts[0] if self.assembly is None else self.assembly.join(parts)
        if self.factor != 1.0 and is_floating(str(combined.dtype)):
            combined = combined * combined.dtype.type(self.factor)
        return combined


def combine_tensor(
    siblings: Siblings, row: int, relation: Relation, assembly: Assembly | None
) -> CombinedTensor | None:
    """Return how the whole tensors of a row make up one; None if a rank has no whole tensor."""
    parts = []
    files = []
    for part in relation.parts:
        tensors = []
        for rank in part:
            tensor = int(siblings.rows[row, rank])
            files.append(siblings.flows[rank].tensors["file"].iat[tensor])
            tensors.append((siblings.flows[rank].trace, tensor))
        parts.append(tuple(tensors))
    if not all(files):
        return None
    ranks = [" + ".join(siblings.names[rank] for rank in part) for part in relation.parts]
    labels = siblings.labels[row].tolist()
    holders = tuple(_name_holders(siblings, part, labels) for part in relation.parts)
    if len(holders) == 1 and len(set(labels)) > 1:
        holders = (*holders, "")  # the other ranks hold other numbers, which were not taken
    file = f"{files[0]} ({', '.join(ranks)})"
    return CombinedTensor(file, tuple(parts), relation.factor, assembly, holders)


def _name_holders(siblings: Siblings, part: tuple[int, ...], labels: list[int]) -> str:
    """Return the ranks that hold a part: 'rank 0, rank 1'; '' if it is a sum over ranks."""
    if len(part) > 1:
        return ""
    holders = [rank for rank, label in enumerate(labels) if label == labels[part[0]]]
    return ", ".join(siblings.names[rank] for rank in holders)
