"""Two sides whose parameters are paired, with squares or roots decided for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...model.arrays import Floats
from ...rulebook import Rules
from ..norms import Norms, combine_norms
from .match import ParameterPair, ParameterPairs, collect_paired_indices
from .name_pairs import map_canonical_names, pair_by_name
from .value_pairs import pair_by_value

#: A list is taken as squares only if the sides are then this many times nearer to each other.
_MIN_IMPROVEMENT = 3.0
#: Logarithmic distance of a norm without a partner, or that is finite on one side only.
_UNPAIRED_DISTANCE = 10.0


@dataclass(frozen=True)
class PairedSides:
    """Two sides with their pairs of parameters; ``squared`` is known for both."""

    target: Norms
    reference: Norms
    pairs: ParameterPairs

    def compute_pair_norms(self) -> tuple[Floats, Floats, Floats]:
        """Return the target norm, the reference norm and the absolute rounding error of each pair.

        The rounding error is that of the printed digits of both sides together.
        """
        target_groups = [pair.target_indices for pair in self.pairs.pairs]
        reference_groups = [pair.reference_indices for pair in self.pairs.pairs]
        target, target_rounding = _compute_group_norms(self.target, target_groups)
        reference, reference_rounding = _compute_group_norms(self.reference, reference_groups)
        return target, reference, target_rounding + reference_rounding

    def compute_median_distance(self) -> float:
        """Return the median logarithmic distance of the pairs; unpaired norms count as far."""
        target, reference, rounding = self.compute_pair_norms()
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = np.abs(np.log(target / reference)) - rounding / reference
            distances = np.maximum(distances, 0)
        distances = np.where(np.isfinite(distances), distances, _UNPAIRED_DISTANCE)
        n_unpaired = max(len(self.pairs.target_unpaired), len(self.pairs.reference_unpaired))
        all_distances = [*distances.tolist(), *[_UNPAIRED_DISTANCE] * n_unpaired]
        return float(np.median(all_distances)) if all_distances else _UNPAIRED_DISTANCE


def pair_sides(target: Norms, reference: Norms, rules: Rules) -> PairedSides:
    """Pair the parameters of two sides.

    If a side may hold squares or roots, the interpretation under which the sides agree better is
    chosen; roots are preferred.
    """
    interpretations = list(product(_list_interpretations(target), _list_interpretations(reference)))
    if target.squared is None and reference.squared is None:
        interpretations.pop()  # squares on both sides give the same pairs as roots on both sides
    candidates = [PairedSides(*sides, pair_parameters(*sides, rules)) for sides in interpretations]
    as_roots = candidates[0]
    nearest = min(candidates, key=PairedSides.compute_median_distance)
    nearest_distance = nearest.compute_median_distance()
    if nearest_distance * _MIN_IMPROVEMENT > as_roots.compute_median_distance():
        return as_roots
    return nearest


def _list_interpretations(side: Norms) -> list[Norms]:
    """Return a side as roots and as squares; as it is if ``squared`` is known."""
    if side.squared is not None:
        return [side]
    return [
        replace(
            side,
            squared=squared,
            squared_reason=f"interpreted as {name}, because the sides agree best this way",
        )
        for squared, name in ((False, "roots"), (True, "squares"))
    ]


def _compute_group_norms(side: Norms, groups: Sequence[tuple[int, ...]]) -> tuple[Floats, Floats]:
    """Return the norm of each group of parameters as one, and its absolute rounding error."""
    values, value_rounding = side.values, side.value_rounding
    first_indices = [indices[0] for indices in groups]
    norms, rounding = values[first_indices], value_rounding[first_indices]
    for number, indices in enumerate(groups):
        if len(indices) == 1:
            continue
        part_norms, part_rounding = values[list(indices)], value_rounding[list(indices)]
        norm = combine_norms(part_norms)
        norms[number] = norm
        if norm:
            rounding[number] = np.sum(part_norms * part_rounding) / norm
        else:
            rounding[number] = np.sum(part_rounding)
    return norms, rounding


def pair_parameters(target: Norms, reference: Norms, rules: Rules) -> ParameterPairs:
    """Pair parameters by name and rule, then the remaining ones by order and value.

    ``squared`` must be known for both sides.
    """
    sides = target, reference
    indices = map_canonical_names(target, rules), map_canonical_names(reference, rules)
    pairs = pair_by_name(sides, indices, rules)
    target_names = {index: path for path, index in indices[0].items()}
    reference_names = {index: path for path, index in indices[1].items()}
    value_pairs = pair_by_value(
        sides, _find_unpaired(sides, pairs), (target_names, reference_names), rules
    )
    pairs += value_pairs.pairs
    target_unpaired, reference_unpaired = _find_unpaired(sides, pairs)
    return ParameterPairs(
        tuple(pairs), tuple(target_unpaired), tuple(reference_unpaired), value_pairs.n_ambiguous
    )


def _find_unpaired(
    sides: tuple[Norms, Norms], pairs: Sequence[ParameterPair]
) -> tuple[list[int], list[int]]:
    """Return the indices of both sides' parameters that are in no pair."""
    target, reference = sides
    paired_target, paired_reference = collect_paired_indices(pairs)
    target_unpaired = set(range(len(target))) - paired_target
    reference_unpaired = set(range(len(reference))) - paired_reference
    return sorted(target_unpaired), sorted(reference_unpaired)
