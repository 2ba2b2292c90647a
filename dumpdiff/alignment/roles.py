"""Role evidence: a network repeats itself, so what was learned where the runs agree holds where they do not.

Each side's ops get roles of their own: Weisfeiler-Lehman labels (Shervashidze et al., JMLR 12, 2011) from the op's
kind, the parameters it reads without their layer number, and its neighbours up to some hops away. Pairs that agree tell
which role of the reference is which role of the target; the k-th unpaired member of one is then the k-th of the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from ..graph import Flow
from ..model.arrays import Hashes
from .anchors import contradicts
from .matches import Matching

_DIGITS = re.compile(r"\d+")
RADIUS = 3  # hops: within a layer, rarely beyond


def transfer(matching: Matching) -> Iterator[bool]:
    """Pair classes by the roles of their producers, farthest radius first; yields True after each step that added any.

    Between two steps the caller may add pairs of its own: what a step is taught includes them.
    """
    names = _leaf_names(matching)
    labels_t = _labels(matching.target, matching.kinds_t, names[0])
    labels_r = _labels(matching.reference, matching.kinds_r, names[1])
    for radius in range(RADIUS, -1, -1):
        roles_t = _class_roles(matching.target, labels_t[radius])
        roles_r = _class_roles(matching.reference, labels_r[radius])
        while _transferred(matching, roles_t, roles_r, radius):
            yield True


def _transferred(matching: Matching, roles_t: Hashes, roles_r: Hashes, radius: int) -> bool:
    open_t = (matching.classes_t < 0) & (roles_t != 0)
    open_r = (matching.classes_r < 0) & (roles_r != 0)
    if not open_t.any() or not open_r.any():
        return False
    wanted = _taught(
        matching, roles_t, roles_r, set(roles_t[open_t].tolist()), 2 if radius == 0 else 1
    )
    members_t, members_r = _members(roles_t, set(wanted)), _members(roles_r, set(wanted.values()))
    progress = False
    for role_t, role_r in wanted.items():
        if len(members_t[role_t]) != len(members_r[role_r]):
            continue
        for t, r in zip(members_t[role_t], members_r[role_r], strict=True):
            if (
                matching.classes_t[t] < 0
                and matching.classes_r[r] < 0
                and not contradicts(matching, t, r)
            ):
                progress |= matching.pair(t, r, "role", 0.5 + 0.05 * radius)
    return progress


def _taught(
    matching: Matching, roles_t: Hashes, roles_r: Hashes, wanted: set[int], least: int
) -> dict[int, int]:
    """Which role of the reference each wanted role of the target is: four in five sure pairs, both ways, say so."""
    forth: dict[int, Counter[int]] = defaultdict(Counter)
    back: dict[int, Counter[int]] = defaultdict(Counter)
    sure = np.array(
        [t for t, confidence in matching.confidence.items() if confidence >= 0.7], dtype=int
    )
    for role_t, role_r in zip(
        roles_t[sure].tolist(), roles_r[matching.classes_t[sure]].tolist(), strict=True
    ):
        if role_t and role_r and role_t in wanted:
            forth[role_t][role_r] += 1
            back[role_r][role_t] += 1
    found = {}
    for role_t, counter in forth.items():
        role_r, count = counter.most_common(1)[0]
        if (
            count >= least
            and count >= 0.8 * counter.total()
            and back[role_r].most_common(1)[0][0] == role_t
        ):
            found[role_t] = role_r
    return found


def _leaf_names(matching: Matching) -> tuple[list[str], list[str]]:
    """Per class, what a leaf is called, without digits; a side without a name borrows that of its partner."""
    sides = []
    for flow, classes, other in (
        (matching.target, matching.classes_t, matching.reference),
        (matching.reference, matching.classes_r, matching.target),
    ):
        own = flow.classes["parameter"].tolist()
        others = other.classes["parameter"].tolist()
        sides.append(
            [name or (others[classes[i]] if classes[i] >= 0 else "") for i, name in enumerate(own)]
        )
    return [_DIGITS.sub("*", name) for name in sides[0]], [
        _DIGITS.sub("*", name) for name in sides[1]
    ]


def _labels(flow: Flow, kinds: list[str], names: list[str]) -> list[Hashes]:
    """Weisfeiler-Lehman labels of the ops for radius 0, 1, ..., RADIUS: (ops,) uint64 each.

    The multiset of a neighbourhood is hashed as the sum of its members' hashes, so that whole graphs are relabelled at
    once.
    """
    producer = flow.classes["producer"].tolist()
    size = flow.classes["size"].tolist()
    first = []
    for kind, reads in zip(kinds, flow.reads, strict=True):
        leaves = sorted(names[v] or f"leaf {size[v]}" for v in reads if producer[v] < 0)
        first.append(hash((kind, tuple(leaves))))
    edges = [
        (producer[v], op) for op, reads in enumerate(flow.reads) for v in reads if producer[v] >= 0
    ]
    above, below = np.array(edges, dtype=int).reshape(-1, 2).T
    labels = [np.array(first, dtype=np.int64).view(np.uint64)]
    for _ in range(RADIUS):
        last = _mixed(labels[-1])
        gathered = last.copy()
        np.add.at(gathered, below, _mixed(last[above] + np.uint64(1)))
        np.add.at(gathered, above, _mixed(last[below] + np.uint64(2)))
        labels.append(gathered)
    return labels


def _mixed(values: Hashes) -> Hashes:
    """A bijection that scatters bits: the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def _class_roles(flow: Flow, labels: Hashes) -> Hashes:
    """(classes,) the role of each class: its producer's label and its place among the outputs; 0 for leaves."""
    producer = flow.classes["producer"].to_numpy()
    place = np.zeros(len(producer), dtype=np.uint64)
    for op, writes in enumerate(flow.writes):
        for position, value in enumerate(writes[1:], 1):
            if producer[value] == op:
                place[value] = position
    roles: Hashes = np.where(
        producer >= 0, _mixed(labels[producer] + np.uint64(3) * place), np.uint64(0)
    )
    return roles


def _members(roles: Hashes, wanted: set[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for value, role in enumerate(roles.tolist()):
        if role in wanted:
            members[role].append(value)
    return members
