"""Role evidence: a network repeats itself, so what was learned where the runs agree holds where they do not.

Each side's ops get roles of their own: Weisfeiler-Lehman labels (Shervashidze et al., JMLR 12, 2011) from the op's
kind, the parameters it reads without their layer number, and its neighbours up to some hops away. Pairs that agree tell which
role of the reference is which role of the target; the k-th unpaired member of one is then the k-th of the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from ..graph import Flow
from .anchors import contradicts
from .matching import Matching

_DIGITS = re.compile(r"\d+")
RADII = (3, 2, 1, 0)


def transfer(matching: Matching, radius: int) -> bool:
    """Pair classes by the roles of their producers at one radius; true if any pair was added."""
    names = _leaf_names(matching)
    roles_t = _class_roles(matching.target, _labels(matching.target, matching.kinds_t, names[0], radius))
    roles_r = _class_roles(matching.reference, _labels(matching.reference, matching.kinds_r, names[1], radius))
    taught: dict[int, Counter[int]] = defaultdict(Counter)
    taught_back: dict[int, Counter[int]] = defaultdict(Counter)
    for t in np.flatnonzero(matching.classes_t >= 0).tolist():
        r = int(matching.classes_t[t])
        if roles_t[t] is not None and roles_r[r] is not None and matching.confidence[t] >= 0.7:
            taught[roles_t[t]][roles_r[r]] += 1
            taught_back[roles_r[r]][roles_t[t]] += 1
    members_t, members_r = _members(roles_t), _members(roles_r)
    progress = False
    for role_t, counter in taught.items():
        (role_r, count), total = counter.most_common(1)[0], sum(counter.values())
        back = taught_back[role_r].most_common(1)[0]
        if back[0] != role_t or count < 0.8 * total or count < (2 if radius == 0 else 1):
            continue
        if len(members_t[role_t]) != len(members_r[role_r]):
            continue
        for t, r in zip(members_t[role_t], members_r[role_r], strict=True):
            if matching.classes_t[t] < 0 and matching.classes_r[r] < 0 and not contradicts(matching, t, r):
                progress |= matching.pair(t, r, "role", 0.5 + 0.05 * radius)
    return progress


def _leaf_names(matching: Matching) -> tuple[list[str], list[str]]:
    """Per class, what a leaf is called, without digits; the reference borrows the names of its partners and the reverse."""
    sides = []
    for flow, classes, other in (
        (matching.target, matching.classes_t, matching.reference),
        (matching.reference, matching.classes_r, matching.target),
    ):
        own = flow.classes["parameter"].tolist()
        others = other.classes["parameter"].tolist()
        sides.append([name or (others[classes[i]] if classes[i] >= 0 else "") for i, name in enumerate(own)])
    return [_DIGITS.sub("*", name) for name in sides[0]], [_DIGITS.sub("*", name) for name in sides[1]]


def _labels(flow: Flow, kinds: list[str], names: list[str], radius: int) -> list[int]:
    """Weisfeiler-Lehman label of each op."""
    producer = flow.classes["producer"].tolist()
    size = flow.classes["size"].tolist()
    labels = []
    for kind, reads in zip(kinds, flow.reads, strict=True):
        leaves = sorted(names[v] or f"leaf {size[v]}" for v in reads if producer[v] < 0)
        labels.append(hash((kind, tuple(leaves))))
    before = [[producer[v] for v in reads if producer[v] >= 0] for reads in flow.reads]
    after = [[op for v in writes for op in flow.readers[v]] for writes in flow.writes]
    for _ in range(radius):
        labels = [
            hash((labels[op], tuple(sorted(labels[i] for i in before[op])), tuple(sorted(labels[i] for i in after[op]))))
            for op in range(len(labels))
        ]
    return labels


def _class_roles(flow: Flow, labels: list[int]) -> list[int | None]:
    roles: list[int | None] = [None] * len(flow.classes)
    producer = flow.classes["producer"].tolist()
    for op, writes in enumerate(flow.writes):
        for position, value in enumerate(writes):
            if producer[value] == op:
                roles[value] = hash((labels[op], position))
    return roles


def _members(roles: list[int | None]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for value, role in enumerate(roles):
        if role is not None:
            members[role].append(value)
    return members
