"""Pair ops by position in repeated layers; the correspondence is learned from layers that agree.

Each side's ops get roles: Weisfeiler-Lehman labels (Shervashidze et al., JMLR 12, 2011) from the
op's kind, the parameters that it reads without their layer number, and its neighbors up to some
hops away. Pairs that agree show which role of the target is which role of the reference. Then the
k-th unpaired member of one is paired with the k-th of the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from ..graph import Flow
from ..model.arrays import Hashes, Ints
from ..model.trace import BACKWARD
from . import confidence
from .anchors import has_conflicting_inputs
from .matches import Matching

#: Hops of the largest neighborhood. Three hops stay within a layer, with few exceptions.
RADIUS = 3
#: Pairs that must lead from a role to its partner role. Without a neighborhood (radius 0) many ops
#: share one role, so two pairs are required; otherwise one is enough.
_MIN_PAIRS_WITHOUT_HOPS = 2
_MIN_PAIRS = 1
#: Share of a role's pairs that must lead to the same role of the other side, in both directions.
_MIN_SHARE = 0.8
#: Ops between a gradient and the paired ones that it follows from.
_MAX_STEPS = 4
_DIGITS = re.compile(r"\d+")


def pair_by_role(matching: Matching) -> Iterator[bool]:
    """Pair classes by the roles of their producers, largest radius first.

    Yields True after each step that added a pair. The caller may add pairs of its own between two
    steps; the next step learns from them too.
    """
    is_open_t = (matching.classes_t < 0) & (matching.target.producers >= 0)
    is_open_r = (matching.classes_r < 0) & (matching.reference.producers >= 0)
    if not is_open_t.any() or not is_open_r.any():
        return
    names_t, names_r = _collect_leaf_names(matching)
    numbers: dict[tuple[str, tuple[str, ...]], int] = {}
    labels_t = _compute_labels(matching.target, matching.kinds_t, names_t, numbers)
    labels_r = _compute_labels(matching.reference, matching.kinds_r, names_r, numbers)
    places_t = _number_outputs(matching.target)
    places_r = _number_outputs(matching.reference)
    for radius in range(RADIUS, -1, -1):
        roles_t = _compute_class_roles(matching.target, labels_t[radius], places_t)
        roles_r = _compute_class_roles(matching.reference, labels_r[radius], places_r)
        while _pair_role_members(matching, roles_t, roles_r, radius):
            yield True


def _pair_role_members(matching: Matching, roles_t: Hashes, roles_r: Hashes, radius: int) -> bool:
    """Pair the members of corresponding roles in order; return whether any pair was added."""
    is_open_t = (matching.classes_t < 0) & (roles_t != 0)
    is_open_r = (matching.classes_r < 0) & (roles_r != 0)
    if not is_open_t.any() or not is_open_r.any():
        return False
    open_roles = np.unique(roles_t[is_open_t]), np.unique(roles_r[is_open_r])
    min_pairs = _MIN_PAIRS_WITHOUT_HOPS if radius == 0 else _MIN_PAIRS
    partner_roles = _learn_roles(matching, roles_t, roles_r, open_roles, min_pairs)
    members_t = _group_by_role(roles_t, set(partner_roles))
    members_r = _group_by_role(roles_r, set(partner_roles.values()))
    role_confidence = confidence.ROLE + confidence.PER_ROLE_HOP * radius
    member_pairs: list[tuple[int, int]] = []
    for role_t, role_r in partner_roles.items():
        if len(members_t[role_t]) != len(members_r[role_r]):
            continue
        member_pairs += zip(members_t[role_t], members_r[role_r], strict=True)
    progress = False
    for t, r in matching.sort_pairs(member_pairs):
        if not matching.can_pair(t, r) or has_conflicting_inputs(matching, t, r):
            continue
        if not _follow_from_other_gradients(matching, t, r):
            progress |= matching.pair(t, r, "role", role_confidence)
    return progress


def separate_other_gradients(matching: Matching) -> None:
    """Unpair gradients paired by their roles that follow from other ones, as later pairs show."""
    for t in [value for value, evidence in matching.evidence.items() if evidence == "role"]:
        r = int(matching.classes_t[t])
        if r >= 0 and _follow_from_other_gradients(matching, t, r):
            matching.unpair(t, r)


def _follow_from_other_gradients(matching: Matching, t: int, r: int) -> bool:
    """Return whether two gradients follow from paired ones, but from none in common.

    One side may have more steps in between: those of layers alike have one role.
    """
    sources_t = _find_paired_gradients(matching.target, matching.classes_t, t)
    sources_r = _find_paired_gradients(matching.reference, matching.classes_r, r)
    partners_t = {int(matching.classes_t[value]) for value in sources_t}
    return bool(sources_t and sources_r) and partners_t.isdisjoint(sources_r)


def _find_paired_gradients(flow: Flow, partners: Ints, value: int) -> set[int]:
    """Return the nearest paired gradients from which a gradient was computed; () is unknown."""
    sources: set[int] = set()
    front = {value} if flow.list_column("phase")[value] == BACKWARD else set()
    for _ in range(_MAX_STEPS):
        operands = {
            operand
            for result in front
            if flow.producers[result] >= 0
            for operand in flow.reads[int(flow.producers[result])]
            if flow.list_column("phase")[operand] == BACKWARD
        }
        sources |= {operand for operand in operands if partners[operand] >= 0}
        front = operands - sources
    return sources


def _learn_roles(
    matching: Matching,
    roles_t: Hashes,
    roles_r: Hashes,
    open_roles: tuple[Hashes, Hashes],
    min_pairs: int,
) -> dict[int, int]:
    """Return target role -> reference role for the open roles that trusted pairs determine.

    At least ``_MIN_SHARE`` of the pairs of either role must lead to the other one. ``open_roles``
    are the target's and the reference's.
    """
    target_to_reference: dict[int, Counter[int]] = defaultdict(Counter)
    reference_to_target: dict[int, Counter[int]] = defaultdict(Counter)
    trusted = [t for t, level in matching.confidence.items() if level >= confidence.TRUSTED]
    trusted_t = np.array(trusted, dtype=int)
    known_t, known_r = roles_t[trusted_t], roles_r[matching.classes_t[trusted_t]]
    is_open_t, is_open_r = np.isin(known_t, open_roles[0]), np.isin(known_r, open_roles[1])
    is_counted = (is_open_t | is_open_r) & (known_t != 0) & (known_r != 0)
    known_pairs = zip(known_t[is_counted].tolist(), known_r[is_counted].tolist(), strict=True)
    for role_t, role_r in known_pairs:
        target_to_reference[role_t][role_r] += 1
        reference_to_target[role_r][role_t] += 1
    open_roles_t, open_roles_r = (set(roles.tolist()) for roles in open_roles)
    partner_roles = {}
    for role_t, counter in target_to_reference.items():
        role_r, count = counter.most_common(1)[0]
        n_pairs = max(counter.total(), reference_to_target[role_r].total())
        is_open = role_t in open_roles_t and role_r in open_roles_r
        if is_open and count >= min_pairs and count >= _MIN_SHARE * n_pairs:
            partner_roles[role_t] = role_r
    return partner_roles


def _collect_leaf_names(matching: Matching) -> tuple[list[str], list[str]]:
    """Return each side's parameter name per class, digits masked.

    A parameter that only one side names has that name on both sides, if it is paired.
    """
    names_t = matching.target.classes["parameter"].tolist()
    names_r = matching.reference.classes["parameter"].tolist()
    return (
        _mask_leaf_names(names_t, matching.classes_t, names_r),
        _mask_leaf_names(names_r, matching.classes_r, names_t),
    )


def _mask_leaf_names(names: list[str], partners: Ints, partner_names: list[str]) -> list[str]:
    masked: dict[str, str] = {"": ""}
    masked_names = []
    for name, partner in zip(names, partners.tolist(), strict=True):
        known_name = name or (partner_names[partner] if partner >= 0 else "")
        if known_name not in masked:
            masked[known_name] = _DIGITS.sub("*", known_name)
        masked_names.append(masked[known_name])
    return masked_names


def _compute_labels(
    flow: Flow,
    kinds: list[str],
    names: list[str],
    numbers: dict[tuple[str, tuple[str, ...]], int],
) -> list[Hashes]:
    """Return the Weisfeiler-Lehman labels of the ops for radius 0 to RADIUS, (ops,) uint64 each.

    The multiset of a neighborhood is hashed as the sum of its members' hashes. So a whole graph is
    relabeled at once. ``numbers`` has the first labels of both sides, and grows.
    """
    lists, sizes = flow.reads, flow.list_column("size")
    producers = flow.producers[lists.values]
    is_leaf = producers < 0
    leaves_of: defaultdict[int, list[str]] = defaultdict(list)
    leaf_reads = zip(lists.rows[is_leaf].tolist(), lists.values[is_leaf].tolist(), strict=True)
    for op, value in leaf_reads:
        leaves_of[op].append(names[value] or f"leaf {sizes[value]}")
    first_labels = [
        numbers.setdefault((kind, tuple(sorted(leaves_of.get(op, ())))), len(numbers))
        for op, kind in enumerate(kinds)
    ]
    producer_ends, consumer_ends = producers[~is_leaf], lists.rows[~is_leaf]  # of each edge
    # scattered, because roles add small numbers; 0 would stay 0, which is no role
    labels = [_hash_labels(np.array(first_labels, dtype=np.uint64) + np.uint64(1))]
    for _ in range(RADIUS):
        hashes = _hash_labels(labels[-1])
        next_labels = hashes.copy()
        np.add.at(next_labels, consumer_ends, _hash_labels(hashes[producer_ends] + np.uint64(1)))
        np.add.at(next_labels, producer_ends, _hash_labels(hashes[consumer_ends] + np.uint64(2)))
        labels.append(next_labels)
    return labels


def _hash_labels(labels: Hashes) -> Hashes:
    """Scatter the bits of each label one to one.

    This is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        labels = (labels ^ (labels >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        labels = (labels ^ (labels >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return labels ^ (labels >> np.uint64(31))


def _number_outputs(flow: Flow) -> Hashes:
    """Return (classes,) the position of each class among the outputs of its producer."""
    lists = flow.writes
    rows = lists.rows
    positions = np.arange(len(rows)) - lists.starts[rows]
    is_produced = flow.producers[lists.values] == rows
    numbers = np.zeros(len(flow.producers), dtype=np.uint64)
    numbers[lists.values[is_produced]] = positions[is_produced]
    return numbers


def _compute_class_roles(flow: Flow, labels: Hashes, positions: Hashes) -> Hashes:
    """Return (classes,) the role of each class, 0 for leaves.

    A role is the label of the producer and the position among its outputs.
    """
    hashes = _hash_labels(labels[flow.producers] + np.uint64(3) * positions)
    roles: Hashes = np.where(flow.producers >= 0, hashes, np.uint64(0))
    return roles


def _group_by_role(roles: Hashes, wanted_roles: set[int]) -> dict[int, list[int]]:
    """Return wanted role -> its classes in order."""
    members: dict[int, list[int]] = defaultdict(list)
    is_wanted = np.isin(roles, np.array(list(wanted_roles), dtype=np.uint64))
    for value in np.flatnonzero(is_wanted).tolist():
        members[int(roles[value])].append(value)
    return members
