"""Pairing norms of which at least one side has no names: by their size, their place in the list and their value.

Both frameworks list parameters nearly in the model's order: Megatron-LM's optimizer puts those that are decayed first,
and modules of one layer may stand in another order. So lists that agree entry by entry are paired in that order; else
an optimal assignment is made, of value first and place second, in which a norm may stay alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from ...arrays import Floats
from ...rules import Rules
from .couples import By, Couple, Pairing
from .side import Norms

#: Two norms this near (relatively, beyond their digits) are as good as equal for pairing.
_NEAR = 0.05
#: Share of two lists that must be near entry by entry for their order to be one: by chance, few are.
_IN_ORDER = 0.6
#: Below this share of near ones, lists of equal length are paired in their order all the same, and it is said.
_HOPELESS = 0.3
#: Distance at which value says nothing more: lists of equal length, lists of which some must stay alone, named ones.
_LOOSE, _TIGHT, _STRICT = 0.2, 0.02, 0.01
_PLACE = 0.25  #: what the farthest place costs, where the farthest value costs 1
_ALONE = 0.35  #: what a norm that stays alone costs
_SUM = 5e-3  #: how near the norm of parts together must come to that of a whole
_MOST_PARTS = 4
_MOST = 4000  #: norms beyond which no assignment is made: its table would not fit

_Names = Mapping[int, str]


@dataclass(frozen=True)
class _Item:
    """A parameter, or parts of one that the other side may hold fused."""

    rows: tuple[int, ...]
    path: str
    value: float
    slack: float  #: relative
    size: int
    vector: int


@dataclass(frozen=True)
class _Match:
    pairs: list[tuple[int, int]]
    by: By
    near: int  #: of these pairs, how many are


def by_value(
    sides: tuple[Norms, Norms], rows: tuple[list[int], list[int]], names: tuple[_Names, _Names], rules: Rules
) -> Pairing:
    """Pair the given rows of both sides; ``names`` has the canonical names of those that have one.

    Where both sides have names that say nothing together, only norms that are as good as equal are paired.
    """
    if not rows[0] or not rows[1]:
        return Pairing(())
    plain = _items(sides[0], rows[0], names[0]), _items(sides[1], rows[1], names[1])
    strict = all(names[0].get(row) for row in rows[0]) and all(names[1].get(row) for row in rows[1])
    best: tuple[float, tuple[list[_Item], list[_Item]], _Match] | None = None
    for items in _arrangements(plain, rules, strict=strict):
        for scale in _scales(items, strict=strict):
            match = _matched(items, scale, strict=strict)
            score = 2 * match.near / (len(items[0]) + len(items[1])) - 0.01 * (scale != 0)
            if best is None or score > best[0]:
                best = (score, items, match)
    assert best is not None
    return _pairing(*best[1:], strict=strict)


def _items(side: Norms, rows: Sequence[int], names: _Names) -> list[_Item]:
    values, slack = side.values, side.slack
    found = []
    for row in rows:
        path, value = names.get(row, ""), float(values[row])
        vector = int(side.vectors[row]) if side.vectors[row] >= 0 or not path else _vector(path)
        found.append(_Item((row,), path, value, float(slack[row]) / max(value, 1e-30), int(side.sizes[row]), vector))
    return found


def _vector(path: str) -> int:
    """Whether a name is that of a bias or of a norm's weight."""
    module, _, leaf = path.rpartition(".")
    return int(leaf == "bias" or module.rpartition(".")[2].endswith("norm"))


def _arrangements(
    plain: tuple[list[_Item], list[_Item]], rules: Rules, *, strict: bool
) -> Iterator[tuple[list[_Item], list[_Item]]]:
    """Both lists as they stand; the named one with parts fused, as the other may hold them, and decayed ones first."""
    yield plain
    named = [all(item.path for item in side) for side in plain]
    if strict or named == [True, True]:
        return
    for side in (0, 1):
        if all(item.vector >= 0 for item in plain[side]):
            for fused in _fusions(plain[side], rules) if named[side] else [plain[side]]:
                for arranged in (fused, sorted(fused, key=lambda item: item.vector)):
                    if arranged is not plain[side]:
                        yield (arranged, plain[1]) if side == 0 else (plain[0], arranged)


def _fusions(items: list[_Item], rules: Rules) -> Iterator[list[_Item]]:
    """The list with each choice of fused parameters (QKV, gate and up) in the place of their first part."""
    wholes: dict[str, list[list[int]]] = defaultdict(list)
    places = {item.path: at for at, item in enumerate(items)}
    for path in places:
        stem, _, leaf = path.rpartition(".")
        module, _, last = stem.rpartition(".")
        for whole, ways in rules.parts.items():
            for way in ways:
                members = [".".join(filter(None, (module, part, leaf))) for part in way]
                if last == way[0] and all(member in places for member in members):
                    wholes[whole].append([places[member] for member in members])
    kinds = sorted(wholes)[:_MOST_PARTS]
    for count in range(len(kinds) + 1):
        for chosen in combinations(kinds, count):
            yield _fused(items, {kind: wholes[kind] for kind in chosen})


def _fused(items: list[_Item], wholes: Mapping[str, list[list[int]]]) -> list[_Item]:
    first: dict[int, _Item] = {}
    gone: set[int] = set()
    for whole, groups in wholes.items():
        for places in groups:
            if gone.intersection(places):
                continue
            gone.update(places)
            module = items[places[0]].path.rpartition(".")[0].rpartition(".")[0]
            path = ".".join(filter(None, (module, whole, items[places[0]].path.rpartition(".")[2])))
            first[min(places)] = _together([items[place] for place in places], path)
    return [first.get(at, item) for at, item in enumerate(items) if at in first or at not in gone]


def _together(items: Sequence[_Item], path: str = "") -> _Item:
    """Parts as one: squares add up, and so do sizes."""
    value = float(np.sqrt(sum(item.value**2 for item in items)))
    open_ = sum(item.slack * item.value**2 for item in items) / max(value**2, 1e-30)
    size = sum(item.size for item in items) if all(item.size >= 0 for item in items) else -1
    return _Item(tuple(row for item in items for row in item.rows), path, value, open_, size, items[0].vector)


def _scales(items: tuple[list[_Item], list[_Item]], *, strict: bool) -> Iterator[float]:
    """Logarithms of factors that may lie between the sides: none, or that of what they are together."""
    yield 0.0
    sums = [sum(item.value**2 for item in side) for side in items]
    if not strict and len(items[0]) == len(items[1]) and all(np.isfinite(total) and total > 0 for total in sums):
        scale = 0.5 * float(np.log(sums[0] / sums[1]))
        if abs(scale) > _NEAR:
            yield scale


def _matched(items: tuple[list[_Item], list[_Item]], scale: float, *, strict: bool) -> _Match:
    equal = len(items[0]) == len(items[1])
    if equal:
        far = np.array([_distance(t, r, scale) for t, r in zip(*items, strict=True)])
        if np.mean(far <= _NEAR) >= _IN_ORDER and np.isfinite(far).all():
            return _Match([(i, i) for i in range(len(far))], "order", int(np.sum(far <= _NEAR)))
    if max(map(len, items)) > _MOST:
        return _Match([], "value", 0)
    return _assigned(items, scale, _STRICT if strict else _LOOSE if equal else _TIGHT)


def _distance(target: _Item, reference: _Item, scale: float) -> float:
    """How far apart two norms are beyond their digits, as a logarithm; infinite if their sizes differ."""
    if target.size >= 0 and reference.size >= 0 and target.size != reference.size:
        return float("inf")
    if not (np.isfinite(target.value) and np.isfinite(reference.value)):
        return 1e3
    apart = abs(np.log(max(target.value, 1e-30) / max(reference.value, 1e-30)) - scale)
    return max(0.0, float(apart) - target.slack - reference.slack)


def _assigned(items: tuple[list[_Item], list[_Item]], scale: float, limit: float) -> _Match:
    """The pairs that cost least together, where a norm may stay alone."""
    from scipy.optimize import linear_sum_assignment

    t, r = items
    far = _distances(t, r, scale)
    place = np.abs(np.linspace(0, 1, len(t))[:, None] - np.linspace(0, 1, len(r))[None, :])
    cost = np.where(np.isfinite(far), np.minimum(far / limit, 1) + _PLACE * place, 1e6)
    table = np.zeros((len(t) + len(r),) * 2)
    table[: len(t), : len(r)] = cost
    table[: len(t), len(r) :] = _ALONE
    table[len(t) :, : len(r)] = _ALONE
    rows, columns = linear_sum_assignment(table)
    pairs = [(i, j) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if i < len(t) and j < len(r)]
    return _Match(pairs, "value", sum(bool(far[i, j] <= min(limit, _NEAR)) for i, j in pairs))


def _distances(t: Sequence[_Item], r: Sequence[_Item], scale: float) -> Floats:
    """(target, reference) of :func:`_distance`."""
    value, slack, size = (
        [np.array([getattr(item, name) for item in side], dtype=float) for side in (t, r)]
        for name in ("value", "slack", "size")
    )
    with np.errstate(invalid="ignore"):
        logs = [np.log(np.maximum(one, 1e-30)) for one in value]
        far = np.abs(logs[0][:, None] - logs[1][None, :] - scale) - slack[0][:, None] - slack[1][None, :]
    far = np.where(np.isnan(far), 1e3, np.maximum(far, 0))
    other = (size[0][:, None] >= 0) & (size[1][None, :] >= 0) & (size[0][:, None] != size[1][None, :])
    return np.where(other, np.inf, far)


def _pairing(items: tuple[list[_Item], list[_Item]], match: _Match, *, strict: bool) -> Pairing:
    t, r = items
    pairs: dict[tuple[int, int], By] = dict.fromkeys(match.pairs, match.by)
    notes: tuple[str, ...] = ()
    couples: list[Couple] = []
    if not strict and match.by == "value":
        alike = len(t) == len(r) and all(np.isfinite(_distance(a, b, 0.0)) for a, b in zip(t, r, strict=True))
        if alike and match.near < _HOPELESS * len(t):
            pairs = dict.fromkeys(((i, i) for i in range(len(t))), "order")
            notes = ("norms without names were paired in their order alone: their values do not confirm it",)
        else:
            couples = list(_sums(t, r, pairs))
            taken = {row for c in couples for row in c.target}, {row for c in couples for row in c.reference}
            pairs |= dict.fromkeys(_between(t, r, list(pairs), taken), "order")
    couples += [
        Couple(t[i].path or r[j].path, t[i].rows, r[j].rows, by if len(t[i].rows) == len(r[j].rows) else "parts")
        for (i, j), by in pairs.items()
    ]
    return Pairing(tuple(couples), ambiguous=_ambiguous(t, r, pairs), notes=notes)


def _between(
    t: Sequence[_Item], r: Sequence[_Item], pairs: Sequence[tuple[int, int]], taken: tuple[set[int], set[int]]
) -> Iterator[tuple[int, int]]:
    """As many norms alone on both sides between two pairs that follow each other: they are pairs by their order."""
    ends = [(-1, -1), *sorted(pairs), (len(t), len(r))]
    for (i, j), (after_i, after_j) in pairwise(ends):
        gap = [
            (a, b) for a, b in zip(range(i + 1, after_i), range(j + 1, after_j), strict=False)
            if np.isfinite(_distance(t[a], r[b], 0.0))
        ]  # fmt: skip
        alone = not any(taken[0].intersection(t[a].rows) or taken[1].intersection(r[b].rows) for a, b in gap)
        inside = {b for a, b in pairs if j < b < after_j}
        if after_i - i == after_j - j > 1 and len(gap) == after_i - i - 1 and alone and not inside:
            yield from gap


def _sums(t: Sequence[_Item], r: Sequence[_Item], pairs: Mapping[tuple[int, int], By]) -> Iterator[Couple]:
    """Norms that are alone, and two to four that follow each other on the other side and together are as large."""
    alone = [i for i in range(len(t)) if i not in {a for a, _ in pairs}], [
        j for j in range(len(r)) if j not in {b for _, b in pairs}
    ]  # fmt: skip
    used: tuple[set[int], set[int]] = set(), set()
    for one, many, side in ((t, r, 0), (r, t, 1)):
        runs = list(_runs(many, alone[1 - side]))
        for whole in alone[side]:
            fits = [
                (_distance(one[whole], _together([many[at] for at in run]), 0.0), run) for run in runs
                if whole not in used[side] and not used[1 - side].intersection(run)
            ]  # fmt: skip
            fit = min(fits, default=(np.inf, ()))
            if fit[0] <= _SUM and fit[1]:
                used[side].add(whole)
                used[1 - side].update(fit[1])
                parts, path = _together([many[at] for at in fit[1]]), one[whole].path
                yield (
                    Couple(path, one[whole].rows, parts.rows, "parts")
                    if side == 0
                    else Couple(path, parts.rows, one[whole].rows, "parts")
                )


def _runs(items: Sequence[_Item], alone: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for start in range(len(alone)):
        for length in range(2, _MOST_PARTS + 1):
            run = tuple(alone[start : start + length])
            if len(run) == length and run[-1] - run[0] == length - 1:
                yield run


def _ambiguous(t: Sequence[_Item], r: Sequence[_Item], pairs: Mapping[tuple[int, int], By]) -> int:
    """Pairs by value where the two norms of another such pair could be exchanged without being farther apart."""
    valued = [pair for pair, by in pairs.items() if by == "value"]
    if len(valued) < 2:
        return 0
    far = _distances([t[i] for i, _ in valued], [r[j] for _, j in valued], 0.0)
    own = np.diag(far)
    crossed = far + far.T <= own[:, None] + own[None, :] + 1e-3
    np.fill_diagonal(crossed, False)
    return int(crossed.any(axis=1).sum())
