"""Pair parameters by statistics that do not depend on the order of their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..model.arrays import Flags, Floats
from .distance import compute_noise
from .groups import Group, Member
from .matrix import Matrix

#: Allowed relative difference of the statistics of one weight in two dtypes, in units of the
#: rounding noise: norms and extremes have an error of at most one unit each, sums of many elements
#: a far smaller one.
_TOLERANCE = 2.0
_TINY = 1e-30  #: absolute tolerance, for statistics that are zero
_STATISTICS = 5  #: size, norm, minimum, maximum, sum of magnitudes

#: Of a weight with some wrong rows, at least this share of a sample is that of its counterpart.
_SAME_SHARE = 0.5
_SAMPLED = 64  #: rows, and columns, of that sample
_FEWEST_VALUES = 8  #: different values that must be equal: fewer may be so by coincidence
#: Weights of one shape that are compared with each other: more would be single experts.
_MOST_CANDIDATES = 64


def pair_by_value(
    target: Sequence[Member], reference: Sequence[Member], report_bytes: Callable[[int], None]
) -> tuple[list[Group], list[Member], list[Member]]:
    """Pair members that are each other's only match; return groups and unpaired members.

    A match has the same statistics; of what is left, most of the same elements in their places.
    """
    target_sizes = {member.matrix.size for member in target}
    sizes = target_sizes & {member.matrix.size for member in reference}
    targets = [member for member in target if member.matrix.size in sizes]
    references = [member for member in reference if member.matrix.size in sizes]
    target_statistics = _compute_all_statistics(targets, report_bytes)
    reference_statistics = _compute_all_statistics(references, report_bytes)
    groups: list[Group] = []
    paired_ids: set[int] = set()
    for row, member in enumerate(targets):
        matches = _find_matches(member, target_statistics[row], references, reference_statistics)
        if len(matches) != 1:
            continue
        counterpart = references[matches[0]]
        statistics = reference_statistics[matches[0]]
        if len(_find_matches(counterpart, statistics, targets, target_statistics)) == 1:
            groups.append(Group((member,), (counterpart,), "value"))
            paired_ids |= {id(member), id(counterpart)}
    unpaired_target = [member for member in target if id(member) not in paired_ids]
    unpaired_reference = [member for member in reference if id(member) not in paired_ids]
    similar_groups = _pair_similar(unpaired_target, unpaired_reference)
    groups += similar_groups
    paired_ids |= {
        id(member) for group in similar_groups for member in (*group.target, *group.reference)
    }
    unpaired_target = [member for member in unpaired_target if id(member) not in paired_ids]
    unpaired_reference = [member for member in unpaired_reference if id(member) not in paired_ids]
    return groups, unpaired_target, unpaired_reference


def _pair_similar(target: Sequence[Member], reference: Sequence[Member]) -> list[Group]:
    """Pair members of one shape if most elements of a sample are equal, and of no other member."""
    groups = []
    shapes = {member.matrix.shape for member in target}
    for shape in sorted(shapes & {member.matrix.shape for member in reference}):
        targets = [member for member in target if member.matrix.shape == shape]
        references = [member for member in reference if member.matrix.shape == shape]
        if max(len(targets), len(references)) > _MOST_CANDIDATES:
            continue
        is_similar = _compare_samples(targets, references)
        for row, column in np.argwhere(is_similar):
            if is_similar[row].sum() == is_similar[:, column].sum() == 1:
                groups.append(Group((targets[row],), (references[column],), "value"))
    return groups


def _compare_samples(targets: Sequence[Member], references: Sequence[Member]) -> Flags:
    """Return (targets, references) whether most elements of the samples are equal."""
    target_samples = [_read_sample(member.matrix) for member in targets]
    reference_samples = [_read_sample(member.matrix) for member in references]
    is_similar = np.zeros((len(targets), len(references)), dtype=bool)
    for row, target_sample in enumerate(target_samples):
        for column, sample in enumerate(reference_samples):
            noise = compute_noise(
                targets[row].matrix.precision, references[column].matrix.precision
            )
            scale = np.maximum(np.abs(target_sample), np.abs(sample))
            is_equal = np.abs(target_sample - sample) <= _TOLERANCE * noise * scale
            has_values = len(np.unique(sample[is_equal])) >= _FEWEST_VALUES
            is_similar[row, column] = has_values and is_equal.mean() >= _SAME_SHARE
    return is_similar


def _read_sample(matrix: Matrix) -> Floats:
    """Return elements of rows and columns that are evenly spread."""
    n_rows, n_columns = matrix.shape
    rows = np.unique(np.linspace(0, n_rows - 1, min(n_rows, _SAMPLED)).astype(int))
    columns = np.unique(np.linspace(0, n_columns - 1, min(n_columns, _SAMPLED)).astype(int))
    return matrix.read_values(rows)[:, columns]


def _find_matches(
    member: Member, statistics: Floats, candidates: Sequence[Member], candidate_statistics: Floats
) -> list[int]:
    """Return the indices of ``candidates`` with the statistics of ``member``."""
    _, norm, low, high, magnitude = statistics
    if low == high:  # a constant has no identity
        return []
    limits = np.array(
        [
            _TOLERANCE * compute_noise(member.matrix.precision, candidate.matrix.precision)
            for candidate in candidates
        ]
    )
    extreme = max(abs(low), abs(high))
    scale = np.array([0, norm, extreme, extreme, magnitude])
    is_near = np.abs(candidate_statistics - statistics) <= np.maximum(
        limits[:, None] * scale, _TINY
    )
    return [int(row) for row in np.flatnonzero(is_near.all(axis=1))]


def _compute_all_statistics(
    members: Sequence[Member], report_bytes: Callable[[int], None]
) -> Floats:
    """Return the statistics of each member: (members, 5)."""
    statistics = [_compute_statistics(member.matrix, report_bytes) for member in members]
    return np.array(statistics).reshape(-1, _STATISTICS)


def _compute_statistics(matrix: Matrix, report_bytes: Callable[[int], None]) -> Floats:
    """Return size, norm, minimum, maximum and sum of magnitudes of the finite elements."""
    square = magnitude = 0.0
    low, high = np.inf, -np.inf
    for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
        values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
        values = values[np.isfinite(values)]
        if values.size:
            square += float(np.vdot(values, values))
            magnitude += float(np.abs(values).sum())
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        report_bytes(values.nbytes)
    return np.array([matrix.size, np.sqrt(square), low, high, magnitude])
