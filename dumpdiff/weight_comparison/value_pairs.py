"""Parameters that names do not pair: found by the numbers of their elements, whatever order these are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..model.arrays import Floats
from .distance import compute_noise
from .groups import Group, Member
from .matrix import Matrix

#: How far norms, sums of magnitudes and extremes of one weight in two dtypes may be apart, relatively: rounding errs by
#: at most one unit each, sums of many by far less.
_TOLERANCE = 2.0


def pair_by_value(
    target: Sequence[Member], reference: Sequence[Member], done: Callable[[int], None]
) -> tuple[list[Group], list[Member], list[Member]]:
    """Groups of one and one of equal size and equal numbers, each the other's only match, and what is left over."""
    sizes = {m.matrix.size for m in target} & {m.matrix.size for m in reference}
    sides = [[m for m in members if m.matrix.size in sizes] for members in (target, reference)]
    prints = [
        np.array([_fingerprint(m.matrix, done) for m in members]).reshape(-1, 5)
        for members in sides
    ]
    found: list[Group] = []
    for row, member in enumerate(sides[0]):
        near = _near(prints[0][row], member, prints[1], sides[1])
        if len(near) == 1:
            other = sides[1][near[0]]
            if len(_near(prints[1][near[0]], other, prints[0], sides[0])) == 1:
                found.append(Group((member,), (other,), "value"))
    taken = {id(m) for group in found for m in (*group.target, *group.reference)}
    left = [[m for m in members if id(m) not in taken] for members in (target, reference)]
    return found, left[0], left[1]


def _near(wanted: Floats, member: Member, others: Floats, members: Sequence[Member]) -> list[int]:
    """Rows of ``others`` that hold the same numbers."""
    if wanted[2] == wanted[3]:  # constants tell nothing
        return []
    limits = np.array(
        [
            _TOLERANCE * compute_noise(member.matrix.precision, other.matrix.precision)
            for other in members
        ]
    )
    scale = np.array(
        [
            0,
            wanted[1],
            max(abs(wanted[2]), abs(wanted[3])),
            max(abs(wanted[2]), abs(wanted[3])),
            wanted[4],
        ]
    )
    near = np.abs(others - wanted) <= np.maximum(limits[:, None] * scale, 1e-30)
    return [int(row) for row in np.flatnonzero(near.all(axis=1))]


def _fingerprint(matrix: Matrix, done: Callable[[int], None]) -> Floats:
    """(5,): size, norm, least, largest, sum of magnitudes; none depends on the order of the elements."""
    square = magnitude = 0.0
    low, high = np.inf, -np.inf
    for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
        values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
        values = values[np.isfinite(values)]
        if values.size:
            square += float(np.vdot(values, values))
            magnitude += float(np.abs(values).sum())
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        done(values.nbytes)
    return np.array([matrix.size, np.sqrt(square), low, high, magnitude])
