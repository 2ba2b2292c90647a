"""Find parameters that are sums of two or three parameters of the other side.

Terms may also be subtracted.

Names do not show this, but the values do. Every parameter that could take part is projected on a
few random directions. A projection of a sum is the sum of the projections, so sums are found
without reading a parameter again. What is found is then compared completely.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from os.path import commonprefix

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import is_floating
from .computed_matrix import add_matrices
from .distance import Distance, compute_noise, measure_distance
from .groups import Group, Member
from .matrix import Matrix
from .result import Pair

_DIRECTIONS = 16
_SEED = 20_261_121
_MIN_SIZE = 8  #: elements: equal sums of smaller parameters prove little
#: Number of terms -> how many candidates for them are tried, those with the most similar names.
_MAX_CANDIDATES = {2: 96, 3: 32}
_SLACK = 4.0  #: allowed distance of projections, in multiples of the rounding error of all terms
#: The rounding error must be at most this share of the variation of each parameter. If all elements
#: are near one number, as in norms, then so are those of sums.
_MAX_NOISE_SHARE = 0.05
#: Share of the square of the norm that must be variation; a constant could be part of any sum.
_MIN_VARIATION_SHARE = _MAX_NOISE_SHARE**4
#: A quick test for different parameters reads this many elements, and at least this many rows.
_TEST_ELEMENTS, _MIN_TEST_ROWS = 256, 4
_SIDE_NAMES = ("target", "reference")


@dataclass(frozen=True)
class Sums:
    """The sums that were found, and the groups and members that do not take part in one."""

    pairs: tuple[Pair, ...]
    groups: tuple[Group, ...]
    target: tuple[Member, ...]
    reference: tuple[Member, ...]
    elements: int  #: number of elements of the terms, less those of the sums


@dataclass(frozen=True)
class _Projection:
    """A parameter, projected on random directions."""

    member: Member
    coordinates: (
        Floats  #: (16,) projections of all elements; its norm is about that of the elements
    )
    norm: float
    variation: float  #: norm of the elements less their mean

    @property
    def noise(self) -> float:
        """How far rounding can move the projection."""
        precision = self.member.matrix.precision
        return compute_noise(precision, precision) * self.norm


@dataclass(frozen=True)
class _Sum:
    """A parameter that is the sum of signed terms of the other side."""

    side: int  #: of the sum: 0 target, 1 reference
    total: _Projection
    terms: tuple[tuple[int, _Projection], ...]
    distance: Distance

    def list_members(self) -> Iterator[Member]:
        """Yield the sum and its terms."""
        yield self.total.member
        for _, term in self.terms:
            yield term.member


def find_sums(
    groups: Sequence[Group],
    target: Sequence[Member],
    reference: Sequence[Member],
    report_bytes: Callable[[int], None],
) -> Sums:
    """Find sums among ``target`` and ``reference``, the members without a counterpart.

    A sum, or one of its terms, may also be in a group by mistake. A sum counts only if nothing else
    adds up to the same parameter and no parameter is needed twice.
    """
    cache = _ProjectionCache(report_bytes)
    candidate_sums: list[_Sum] = []
    sides = (target, reference), (reference, target)
    for side, (members, possible_terms) in enumerate(sides):
        for member, terms in _list_candidates(side, groups, members, possible_terms):
            candidate_sum = _find_sum(side, cache, member, terms)
            if candidate_sum is not None:
                candidate_sums.append(candidate_sum)
    uses: Counter[int] = Counter()
    for candidate_sum in candidate_sums:
        uses.update(map(id, candidate_sum.list_members()))
    sums = [
        candidate_sum
        for candidate_sum in candidate_sums
        if all(uses[id(member)] == 1 for member in candidate_sum.list_members())
    ]
    used_ids = {id(member) for found_sum in sums for member in found_sum.list_members()}
    other_groups = [
        group for group in groups if used_ids.isdisjoint(map(id, (*group.target, *group.reference)))
    ]
    return Sums(
        pairs=tuple(map(_build_pair, sums)),
        groups=tuple(other_groups),
        target=tuple(member for member in target if id(member) not in used_ids),
        reference=tuple(member for member in reference if id(member) not in used_ids),
        elements=sum(
            (len(found_sum.terms) - 1) * found_sum.total.member.matrix.size for found_sum in sums
        ),
    )


def _index_terms(terms: Sequence[Member]) -> dict[tuple[int, int], list[Member]]:
    """Return shape -> the terms of this shape that are large enough to be recognized in a sum."""
    terms_of_shape: dict[tuple[int, int], list[Member]] = defaultdict(list)
    for term in terms:
        if is_floating(term.matrix.dtype) and term.matrix.size >= _MIN_SIZE:
            terms_of_shape[term.matrix.shape].append(term)
    return terms_of_shape


def _list_candidates(
    side: int, groups: Sequence[Group], members: Sequence[Member], terms: Sequence[Member]
) -> Iterator[tuple[Member, list[Member]]]:
    """Yield members of one side that may be sums, with their possible terms."""
    terms_of_shape = _index_terms(terms)
    candidates: list[tuple[Member, list[Member]]] = [(member, []) for member in members]
    for group in groups:
        if group.fused or len(group.target) != 1:
            continue
        if group.target[0].matrix.shape not in terms_of_shape:
            continue
        pair = group.target[0], group.reference[0]
        if _differ(pair[0].matrix, pair[1].matrix):
            candidates.append((pair[side], [pair[1 - side]]))
    for member, partners in candidates:
        fitting_terms = [*partners, *terms_of_shape.get(member.matrix.shape, ())]
        if len(fitting_terms) > 1 and is_floating(member.matrix.dtype):
            yield member, _sort_by_similarity(fitting_terms, member.name)


def _sort_by_similarity(terms: Sequence[Member], name: str) -> list[Member]:
    """Sort terms by the length of the common prefix of their names with ``name``, longest first."""
    return sorted(terms, key=lambda term: -len(commonprefix([term.name, name])))


def _differ(target: Matrix, reference: Matrix) -> bool:
    """Whether a few rows of two matrices of one shape differ by more than noise."""
    if target.shape != reference.shape:
        return False
    count = max(_MIN_TEST_ROWS, _TEST_ELEMENTS // max(1, target.shape[1]))
    rows = np.unique(np.linspace(0, target.shape[0] - 1, count).astype(np.int64))
    target_values, reference_values = target.read_values(rows), reference.read_values(rows)
    noise = compute_noise(target.precision, reference.precision)
    limit = noise * np.linalg.norm(reference_values)
    return not np.linalg.norm(target_values - reference_values) <= limit


class _ProjectionCache:
    """Projections of members; each member is read once."""

    def __init__(self, report_bytes: Callable[[int], None]) -> None:
        self._report_bytes = report_bytes
        self._projections: dict[int, _Projection | None] = {}

    def get_projection(self, member: Member) -> _Projection | None:
        """Return the projection of a member.

        Returns None if it is constant, or has NaN or infinities: these add up to anything, or to
        nothing.
        """
        if id(member) not in self._projections:
            self._projections[id(member)] = self._project(member)
        return self._projections[id(member)]

    def _project(self, member: Member) -> _Projection | None:
        matrix = member.matrix
        random = np.random.default_rng(_SEED)
        column_directions = np.ones((1, _DIRECTIONS))
        if matrix.shape[1] > 1:
            column_directions = random.standard_normal((matrix.shape[1], _DIRECTIONS))
        coordinates, square, total = np.zeros(_DIRECTIONS), 0.0, 0.0
        for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
            values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
            row_directions = random.standard_normal((len(values), _DIRECTIONS))
            coordinates += np.einsum("ij,ij->j", row_directions, values @ column_directions)
            square += float(np.vdot(values, values))
            total += float(values.sum())
            self._report_bytes(values.nbytes)
        variation = square - total * total / matrix.size
        if not np.isfinite(square) or variation <= _MIN_VARIATION_SHARE * square:
            return None
        return _Projection(
            member=member,
            coordinates=coordinates / np.sqrt(_DIRECTIONS),
            norm=float(np.sqrt(square)),
            variation=float(np.sqrt(variation)),
        )


def _find_sum(
    side: int, cache: _ProjectionCache, member: Member, candidates: Sequence[Member]
) -> _Sum | None:
    """Return the only sum of some candidates that is a member, with as few terms as possible.

    Returns None if there is no way, or more than one.
    """
    total = cache.get_projection(member)
    projections = []
    for candidate in candidates[: max(_MAX_CANDIDATES.values())]:
        projection = cache.get_projection(candidate)
        if projection is not None:
            projections.append(projection)
    if total is None:
        return None
    for n_terms, limit in _MAX_CANDIDATES.items():
        sums = []
        for terms in _find_near_sums(total, projections[:limit], n_terms):
            distance = _compare_sum(side, total, terms)
            if distance is not None:
                sums.append(_Sum(side, total, terms, distance))
        if sums:
            return sums[0] if len(sums) == 1 else None
    return None


def _find_near_sums(
    total: _Projection, candidates: Sequence[_Projection], n_terms: int
) -> Iterator[tuple[tuple[int, _Projection], ...]]:
    """Yield ``n_terms`` signed candidates whose projections add up to that of ``total``."""
    from scipy.spatial import cKDTree

    count = len(candidates)
    if count < n_terms:
        return
    coordinates = np.array([candidate.coordinates for candidate in candidates])
    noises = np.array([candidate.noise for candidate in candidates])
    tree = cKDTree(np.concatenate([coordinates, -coordinates]))
    for indices in combinations(range(count), n_terms - 1):
        for signs in product((1, -1), repeat=n_terms - 1):
            remainder = total.coordinates - np.array(signs) @ coordinates[list(indices)]
            noise = total.noise + noises[list(indices)].sum()
            for point in tree.query_ball_point(remainder, _SLACK * (noise + noises.max())):
                last, last_sign = (point, 1) if point < count else (point - count, -1)
                # Indices increase, so that each set of terms is tried once; one sign must be
                # positive.
                if last <= indices[-1] or 1 not in (*signs, last_sign):
                    continue
                distance = np.linalg.norm(remainder - last_sign * coordinates[last])
                all_indices = [*indices, last]
                if distance <= _SLACK * (total.noise + noises[all_indices].sum()):
                    terms = [candidates[index] for index in all_indices]
                    yield tuple(zip((*signs, last_sign), terms, strict=True))


def _compare_sum(
    side: int, total: _Projection, terms: Sequence[tuple[int, _Projection]]
) -> Distance | None:
    """Compare all elements of a parameter with a sum.

    Returns None if they differ, or if they could be that close by chance.
    """
    projections = [total, *(term for _, term in terms)]
    noise_limit = _MAX_NOISE_SHARE * min(projection.variation for projection in projections)
    if total.noise > noise_limit:
        return None
    sum_matrix = add_matrices(*((float(sign), term.member.matrix) for sign, term in terms))
    if side == 0:
        distance = measure_distance(total.member.matrix, sum_matrix)
    else:
        distance = measure_distance(sum_matrix, total.member.matrix)
    # Terms that nearly cancel have more noise than their sum.
    noise = max(projection.noise for projection in projections)
    distance = replace(distance, noise=max(distance.noise, noise / total.norm))
    relation = distance.classify()
    if relation == "different" or (relation == "noise" and noise > noise_limit):
        return None
    return distance


def _build_pair(found_sum: _Sum) -> Pair:
    member, distance, side = found_sum.total.member, found_sum.distance, found_sum.side
    formula = _format_terms(found_sum.terms)
    term_matrices = [(1.0, term.member.matrix) for _, term in found_sum.terms]
    names = [member.label, formula]
    dtypes = [member.matrix.precision, add_matrices(*term_matrices).precision]
    if side == 1:
        names.reverse()
        dtypes.reverse()
    rounding = ""
    if distance.rounding is not None:
        dtype, method, on_target = distance.rounding
        rounding = f"{_SIDE_NAMES[0 if on_target else 1]} rounded to {dtype}, {method}"
    return Pair(
        path=member.path,
        target=names[0],
        reference=names[1],
        evidence="sum",
        shape=member.matrix.shape,
        dtypes=(dtypes[0], dtypes[1]),
        relation=distance.classify(),
        layout=f"the {_SIDE_NAMES[side]} holds a sum: {formula}",
        rounding=rounding,
        error=distance.relative,
        max_absolute=distance.largest,
        differing_elements=int(distance.unequal.sum()),
        elements=member.matrix.size,
    )


def _format_terms(terms: Sequence[tuple[int, _Projection]]) -> str:
    """Format a sum as 'a + b - c', positive terms first."""
    sorted_terms = sorted(terms, key=lambda term: -term[0])
    texts = [f"{'+' if sign > 0 else '-'} {term.member.label}" for sign, term in sorted_terms]
    return " ".join(texts).removeprefix("+ ")
