"""Pairs of parameters, and matches of two lists of norms from which pairs are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...model.arrays import Flags, Floats
from ..norms import Norms, choose_scale
from ..parameter_path import is_vector

#: name: the same name; rule: names of the same meaning; parts: a fused parameter and its parts,
#: whose squared norms add up; order: the same position in both lists; value: equal norms.
PairEvidence = Literal["name", "rule", "parts", "order", "value"]

#: Distances are absolute differences of logarithms, less the rounding of the printed digits.
#: Two norms within NEAR are almost equal; of many norms, few are that close by chance.
NEAR = 0.02
#: Beyond this distance, a value is no evidence for a pair.
LOOSE = 0.2
#: Distances below this count as equal.
FINE = 1e-4
#: Longer lists are not compared pair by pair: the table of all pairs would not fit into memory.
MAX_NORMS = 1500
#: Positions by which a norm moves if a layer lists its modules in another order.
LAYER_SPAN = 12

#: Score that a factor between the sides costs: a match without a factor is simpler.
_FACTOR_COST = 0.01
#: Replaces a norm of zero where a logarithm is taken.
_ZERO = 1e-30
#: Distance of NaN to anything: more than any two norms, less than two different sizes.
_NAN_DISTANCE = 1e3

Names = Mapping[int, str]  #: index of a parameter -> canonical name


@dataclass(frozen=True)
class ParameterPair:
    """Parameters of both sides that are the same; one side of a fused parameter has several."""

    path: str  #: canonical name, '' if neither side has one
    target_indices: tuple[int, ...]
    reference_indices: tuple[int, ...]
    evidence: PairEvidence


@dataclass(frozen=True)
class ParameterPairs:
    """All pairs, and the indices of both sides' parameters without a partner."""

    pairs: tuple[ParameterPair, ...]
    target_unpaired: tuple[int, ...] = ()
    reference_unpaired: tuple[int, ...] = ()
    n_ambiguous: int = 0  #: pairs by value for which another norm would fit as well


def collect_paired_indices(pairs: Sequence[ParameterPair]) -> tuple[set[int], set[int]]:
    """Return the indices of the target's and the reference's parameters that are in a pair."""
    target_indices: set[int] = set()
    reference_indices: set[int] = set()
    for pair in pairs:
        target_indices.update(pair.target_indices)
        reference_indices.update(pair.reference_indices)
    return target_indices, reference_indices


@dataclass(frozen=True)
class Item:
    """A parameter, or the parts of one that the other side may hold fused."""

    indices: tuple[int, ...]
    path: str  #: canonical name, '' if unknown
    value: float
    rounding: float  #: relative rounding error of the printed digits
    size: int  #: -1 if unknown
    vector_flag: int  #: 1 for at most one axis, 0 for more, -1 if unknown


ItemLists = tuple[list[Item], list[Item]]  #: of target and reference


def build_items(side: Norms, indices: Sequence[int], names: Names) -> list[Item]:
    """Build one item for each of the given parameters."""
    values, value_rounding = side.values, side.value_rounding
    items = []
    for index in indices:
        path = names.get(index, "")
        value = float(values[index])
        vector_flag = int(side.vector_flags[index])
        if vector_flag < 0 and path:
            vector_flag = int(is_vector(path))
        item = Item(
            indices=(index,),
            path=path,
            value=value,
            rounding=float(value_rounding[index]) / max(value, _ZERO),
            size=int(side.sizes[index]),
            vector_flag=vector_flag,
        )
        items.append(item)
    return items


def combine_items(items: Sequence[Item], path: str = "") -> Item:
    """Combine parts into one item: squared norms add up, and so do sizes."""
    scale = choose_scale(np.array([item.value for item in items]))
    squares = [(item.value / scale) ** 2 for item in items]
    scaled_norm = float(np.sqrt(sum(squares)))
    weighted_rounding = 0.0
    for item, square in zip(items, squares, strict=True):
        weighted_rounding += item.rounding * square
    size = -1
    if all(item.size >= 0 for item in items):
        size = sum(item.size for item in items)
    return Item(
        indices=tuple(index for item in items for index in item.indices),
        path=path,
        value=scale * scaled_norm,
        rounding=weighted_rounding / max(scaled_norm**2, _ZERO),
        size=size,
        vector_flag=items[0].vector_flag,
    )


def compute_distances(
    target_items: Sequence[Item], reference_items: Sequence[Item], scale: float
) -> Floats:
    """Return the distance of each target item to each reference item; infinite if sizes differ.

    The shape is (target, reference). ``scale`` is the logarithm of the factor between the sides.
    """
    target_columns = tuple(column[:, None] for column in _build_columns(target_items))
    return _compute_column_distances(target_columns, _build_columns(reference_items), scale)


def compute_elementwise_distances(
    target_items: Sequence[Item], reference_items: Sequence[Item], scale: float
) -> Floats:
    """Return the distance of each target item to the reference item at the same position."""
    target_columns = _build_columns(target_items)
    return _compute_column_distances(target_columns, _build_columns(reference_items), scale)


def _build_columns(items: Sequence[Item]) -> tuple[Floats, ...]:
    """Return logarithms of the values, relative rounding, and sizes."""
    with np.errstate(invalid="ignore"):
        logarithms = np.log(np.maximum([item.value for item in items], _ZERO))
    rounding = np.array([item.rounding for item in items])
    sizes = np.array([item.size for item in items], dtype=float)
    return logarithms, rounding, sizes


def _compute_column_distances(
    target_columns: tuple[Floats, ...], reference_columns: tuple[Floats, ...], scale: float
) -> Floats:
    target_logs, target_rounding, target_sizes = target_columns
    reference_logs, reference_rounding, reference_sizes = reference_columns
    with np.errstate(invalid="ignore"):
        distances = np.abs(target_logs - reference_logs - scale)
        distances = distances - target_rounding - reference_rounding
    distances = np.where(np.isnan(distances), _NAN_DISTANCE, np.maximum(distances, 0))
    sizes_known: Flags = (target_sizes >= 0) & (reference_sizes >= 0)
    sizes_differ = sizes_known & (target_sizes != reference_sizes)
    return np.where(sizes_differ, np.inf, distances)


@dataclass(frozen=True)
class Match:
    """Positions of two lists that belong together, with a score."""

    lists: ItemLists
    positions: tuple[tuple[int, int], ...]  #: (position in target, position in reference)
    evidence: PairEvidence
    scale: float  #: logarithm of the factor between the sides
    score: float  #: 1 if all norms are paired and equal, more if the order agrees too

    def build_pairs(self) -> Iterator[ParameterPair]:
        """Yield the parameters of each pair of positions."""
        for target_position, reference_position in self.positions:
            yield self.build_pair((target_position,), (reference_position,), self.evidence)

    def build_pair(
        self,
        target_positions: Sequence[int],
        reference_positions: Sequence[int],
        evidence: PairEvidence,
    ) -> ParameterPair:
        """Return the parameters at the given positions of both lists as one pair."""
        target_items = [self.lists[0][position] for position in target_positions]
        reference_items = [self.lists[1][position] for position in reference_positions]
        target_indices = _collect_indices(target_items)
        reference_indices = _collect_indices(reference_items)
        path = target_items[0].path if len(target_items) == 1 else ""
        if not path and len(reference_items) == 1:
            path = reference_items[0].path
        if len(target_indices) != len(reference_indices):
            evidence = "parts"
        return ParameterPair(path, target_indices, reference_indices, evidence)


def _collect_indices(items: Sequence[Item]) -> tuple[int, ...]:
    return tuple(index for item in items for index in item.indices)


def compute_score(closeness: float, scale: float) -> float:
    """Return the score of a match from the mean closeness (0 to 1) of its pairs."""
    return closeness - _FACTOR_COST * (scale != 0)


def compute_cost(distances: Any, limit: float) -> Any:
    """Return the cost of distances, from 0 (equal) to 1 (``limit`` and beyond).

    The cost is logarithmic, so that an exact match counts more than a near one.
    """
    return np.log1p(np.minimum(distances, limit) / FINE) / np.log1p(limit / FINE)
