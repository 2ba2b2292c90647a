"""Parameters that are the sum of others: one of a side is two or three of the other's, added or taken away.

Nobody says so; the values do. Every parameter that could take part is projected on a few random directions, and since
a projection of a sum is the sum of the projections, whatever adds up is found without reading a parameter again. What
is found is then compared as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from os.path import commonprefix

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import is_floating
from .computed_matrix import add_matrices
from .distance import Distance, measure_distance, compute_noise
from .groups import Group, Member
from .matrix import Matrix
from .result import Pair

_DIRECTIONS = 16
_SEED = 20_261_121
_SMALLEST = 8  #: elements: of fewer, equal sums say little
#: How many terms are tried for one sum, of those with the most similar names: of two, of three.
_TRIED = {2: 96, 3: 32}
_SLACK = 4.0  #: of what rounding of all terms can cause, up to which a projection is looked at
#: What rounding leaves must be so much less than how much each parameter varies: where all are near one number, as
#: norms are, sums of them are too.
_CLEAR = 0.05


@dataclass(frozen=True)
class Sums:
    """What adds up, and what is left after that."""

    pairs: tuple[Pair, ...]
    groups: tuple[Group, ...]
    target: tuple[Member, ...]
    reference: tuple[Member, ...]
    elements: int  #: of the terms, beyond those of the sums


@dataclass(frozen=True)
class _Print:
    """A parameter, projected."""

    member: Member
    place: (
        Floats  #: (16,) random projections of all elements; its norm is about that of the elements
    )
    norm: float
    varies: float  #: the same norm, of the elements less their mean

    @property
    def noise(self) -> float:
        """How far rounding alone can move it."""
        precision = self.member.matrix.precision
        return compute_noise(precision, precision) * self.norm


@dataclass(frozen=True)
class _Found:
    """A sum: ``one`` of the target (side 0) or of the reference (1), and its terms on the other side."""

    side: int
    one: _Print
    terms: tuple[tuple[int, _Print], ...]
    distance: Distance


def find_sums(
    groups: Sequence[Group],
    target: Sequence[Member],
    reference: Sequence[Member],
    done: Callable[[int], None],
) -> Sums:
    """Find the sums among parameters without a partner; a sum itself, or one of its terms, may have had a wrong one.

    ``target`` and ``reference`` are those without a partner. A sum counts only if nothing else adds up to the same and
    no parameter is needed twice.
    """
    prints = _Prints(done)
    found: list[_Found] = []
    for side, (own, others) in enumerate(((target, reference), (reference, target))):
        for one, terms in _possible(side, groups, own, others):
            if (sum_ := _sum(side, prints, one, terms)) is not None:
                found.append(sum_)
    used = Counter(id(member) for sum_ in found for member in _taking_part(sum_))
    found = [sum_ for sum_ in found if all(used[id(member)] == 1 for member in _taking_part(sum_))]
    taken = {id(member) for sum_ in found for member in _taking_part(sum_)}
    return Sums(
        tuple(map(_pair, found)),
        tuple(g for g in groups if not taken.intersection(map(id, (*g.target, *g.reference)))),
        tuple(member for member in target if id(member) not in taken),
        tuple(member for member in reference if id(member) not in taken),
        elements=sum((len(sum_.terms) - 1) * sum_.one.member.matrix.size for sum_ in found),
    )


def _taking_part(found: _Found) -> Iterator[Member]:
    yield found.one.member
    yield from (term.member for _, term in found.terms)


def _possible(
    side: int, groups: Sequence[Group], own: Sequence[Member], others: Sequence[Member]
) -> Iterator[tuple[Member, list[Member]]]:
    """What of one side may be a sum, and the terms that it may have, those with similar names first."""
    of_shape: dict[tuple[int, int], list[Member]] = {}
    for member in others:
        if is_floating(member.matrix.dtype) and member.matrix.size >= _SMALLEST:
            of_shape.setdefault(member.matrix.shape, []).append(member)
    ones: list[tuple[Member, list[Member]]] = [(member, []) for member in own]
    for group in groups:
        if not group.fused and len(group.target) == 1 and group.target[0].matrix.shape in of_shape:
            both = group.target[0], group.reference[0]
            if both[0].matrix.shape == both[1].matrix.shape and _differ(
                both[0].matrix, both[1].matrix
            ):
                ones.append((both[side], [both[1 - side]]))
    for one, partner in ones:
        terms = [*partner, *of_shape.get(one.matrix.shape, ())]
        if len(terms) > 1 and is_floating(one.matrix.dtype):
            yield one, sorted(terms, key=lambda term: -len(commonprefix([term.name, one.name])))


def _differ(target: Matrix, reference: Matrix) -> bool:
    """Whether some rows of two matrices of one shape are others."""
    rows = np.unique(
        np.linspace(0, target.shape[0] - 1, max(4, 256 // max(1, target.shape[1]))).astype(np.int64)
    )
    a, b = target.read_values(rows), reference.read_values(rows)
    return not np.linalg.norm(a - b) <= compute_noise(
        target.precision, reference.precision
    ) * np.linalg.norm(b)


class _Prints:
    """Projections of members, each read once."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self._done = done
        self._known: dict[int, _Print | None] = {}

    def of(self, member: Member) -> _Print | None:
        """None if it holds one number alone, or NaN or infinities: these add up to anything, or to nothing."""
        if id(member) not in self._known:
            self._known[id(member)] = self._read(member)
        return self._known[id(member)]

    def _read(self, member: Member) -> _Print | None:
        matrix = member.matrix
        drawn = np.random.default_rng(_SEED)
        across = (
            drawn.standard_normal((matrix.shape[1], _DIRECTIONS))
            if matrix.shape[1] > 1
            else np.ones((1, 16))
        )
        place, square, sum_ = np.zeros(_DIRECTIONS), 0.0, 0.0
        for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
            values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
            place += np.einsum(
                "ij,ij->j", drawn.standard_normal((len(values), _DIRECTIONS)), values @ across
            )
            square += float(np.vdot(values, values))
            sum_ += float(values.sum())
            self._done(values.nbytes)
        varies = square - sum_ * sum_ / matrix.size
        if not np.isfinite(square) or varies <= _CLEAR**4 * square:
            return None
        return _Print(
            member, place / np.sqrt(_DIRECTIONS), float(np.sqrt(square)), float(np.sqrt(varies))
        )


def _sum(side: int, prints: _Prints, one: Member, members: Sequence[Member]) -> _Found | None:
    """The only way in which some of ``members`` add up to ``one``, the fewest of them; None if none or several do."""
    whole = prints.of(one)
    terms = [print_ for member in members[: _TRIED[2]] if (print_ := prints.of(member)) is not None]
    if whole is None:
        return None
    for count, most in _TRIED.items():
        found = [
            _Found(side, whole, signed, compared)
            for signed in _near(whole, terms[:most], count)
            if (compared := _compared(side, whole, signed)) is not None
        ]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _near(
    whole: _Print, terms: Sequence[_Print], count: int
) -> Iterator[tuple[tuple[int, _Print], ...]]:
    """Signs and terms, ``count`` of each, whose projections add up to that of the whole."""
    from scipy.spatial import cKDTree

    if len(terms) < count:
        return
    places = np.array([term.place for term in terms])
    tree = cKDTree(np.concatenate([places, -places]))
    noises = np.array([term.noise for term in terms])
    for chosen in combinations(range(len(terms)), count - 1):
        for signs in product((1, -1), repeat=count - 1):
            rest = whole.place - np.array(signs) @ places[list(chosen)]
            reach = _SLACK * (whole.noise + noises[list(chosen)].sum() + noises.max())
            for last in tree.query_ball_point(rest, reach):
                number, sign = (last, 1) if last < len(terms) else (last - len(terms), -1)
                found = [*chosen, number]
                near = np.linalg.norm(rest - sign * places[number]) <= _SLACK * (
                    whole.noise + noises[found].sum()
                )
                if near and number > chosen[-1] and 1 in (*signs, sign):
                    yield tuple(zip((*signs, sign), (terms[i] for i in found), strict=True))


def _compared(side: int, whole: _Print, signed: Sequence[tuple[int, _Print]]) -> Distance | None:
    """The whole beside the sum, all of it; None if they are not the same, or so much is by chance."""
    terms = [term for _, term in signed]
    clear = _CLEAR * min(print_.varies for print_ in (whole, *terms))
    if whole.noise > clear:
        return None
    made = add_matrices(*((float(sign), term.member.matrix) for sign, term in signed))
    own = whole.member.matrix
    found = measure_distance(own, made) if side == 0 else measure_distance(made, own)
    noise = max(
        print_.noise for print_ in (whole, *terms)
    )  # of terms that nearly cancel more than of their sum
    found = replace(found, noise=max(found.noise, noise / whole.norm))
    relation = found.classify()
    return None if relation == "different" or (relation == "noise" and noise > clear) else found


def _pair(found: _Found) -> Pair:
    one = found.one.member
    added_first = sorted(found.terms, key=lambda term: -term[0])
    terms = " ".join(
        ("+ " if sign > 0 else "- ") + term.member.label for sign, term in added_first
    ).removeprefix("+ ")
    coarsest = add_matrices(*((1.0, term.member.matrix) for _, term in found.terms)).precision
    names, dtypes = (one.label, terms), (one.matrix.precision, coarsest)
    rounding = ""
    if found.distance.rounding is not None:
        dtype, way, on_target = found.distance.rounding
        rounding = f"{'target' if on_target else 'reference'} rounded to {dtype}, {way}"
    return Pair(
        path=one.path,
        target=names[found.side],
        reference=names[1 - found.side],
        evidence="sum",
        shape=one.matrix.shape,
        dtypes=dtypes if found.side == 0 else (dtypes[1], dtypes[0]),
        relation=found.distance.classify(),
        layout=f"the {('target', 'reference')[found.side]} holds a sum: {terms}",
        rounding=rounding,
        error=found.distance.relative,
        largest=found.distance.largest,
        unequal=int(found.distance.unequal.sum()),
        elements=one.matrix.size,
    )
