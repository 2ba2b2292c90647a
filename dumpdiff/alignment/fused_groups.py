"""Fused tensors: one on one side is several of the other (q, k, v in one weight; gate and up; and their gradients)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints
from ..rulebook import Rules
from .matches import Matching

_MOST_PARTS = 4


@dataclass(frozen=True)
class Group:
    """Classes of the target that together hold what those of the reference together hold; one side has just one."""

    target: tuple[int, ...]
    reference: tuple[int, ...]


def groups(matching: Matching, rules: Rules) -> tuple[Group, ...]:
    """Fused tensors among what is left over: by canonical names of parameters, else by what is read beside them."""
    found: dict[Group, None] = {}
    sides = (matching.target, matching.classes_t), (matching.reference, matching.classes_r)
    for one, many in ((0, 1), (1, 0)):
        (flow, classes), (other, other_classes) = sides[one], sides[many]
        for column in ("parameter", "gradient_of"):
            left = _left_over(other, other_classes, column, rules)
            for value in np.flatnonzero(
                (classes < 0) & (flow.classes[column] != "").to_numpy()
            ).tolist():
                for names in rules.split(rules.parameter(flow.classes[column].iat[value])):
                    parts = tuple(left[name] for name in names if name in left)
                    if len(parts) == len(names) and _fits(flow, value, other, parts):
                        found[_group(one, value, parts)] = None
        for value, parts in _by_readers(matching, one):
            if _fits(flow, value, other, parts):
                found[_group(one, value, parts)] = None
    weights = _disjoint(found)
    return _disjoint(
        dict.fromkeys(
            (*weights, *(found for group in weights for found in _alongside(matching, group)))
        )
    )


def _group(one: int, value: int, parts: tuple[int, ...]) -> Group:
    return Group((value,), parts) if one == 0 else Group(parts, (value,))


def _left_over(flow: Flow, classes: Ints, column: str, rules: Rules) -> Mapping[str, int]:
    named = flow.classes[column].to_numpy()
    return {
        rules.parameter(named[v]) or named[v]: v
        for v in np.flatnonzero((classes < 0) & (named != "")).tolist()
    }


def _fits(flow: Flow, value: int, other: Flow, parts: tuple[int, ...]) -> bool:
    return len(parts) > 1 and int(flow.sizes[value]) == int(
        sum(other.sizes[part] for part in parts)
    )


def _by_readers(matching: Matching, one: int) -> list[tuple[int, tuple[int, ...]]]:
    """Leaves left over that are read, beside one and the same paired value, by one op here and by several there."""
    leaves = [_leaves_beside(matching, side) for side in (0, 1)]
    return [
        (ours[0], tuple(theirs))
        for beside, ours in leaves[one].items()
        if len(ours) == 1 and 1 < len(theirs := leaves[1 - one].get(beside, [])) <= _MOST_PARTS
    ]


def _leaves_beside(matching: Matching, side: int) -> dict[int, list[int]]:
    """Paired value (numbered by the target) -> unpaired leaves that forward ops read beside it."""
    flow, classes = (
        (matching.target, matching.classes_t),
        (matching.reference, matching.classes_r),
    )[side]
    table: dict[int, list[int]] = defaultdict(list)
    for op, reads in enumerate(flow.reads):
        if flow.phases[op] != "forward":
            continue
        leaves = [v for v in reads if classes[v] < 0 and flow.producers[v] < 0]
        beside = [
            v if side == 0 else int(classes[v])
            for v in reads
            if classes[v] >= 0 and flow.producers[v] >= 0
        ]
        if len(leaves) == 1 and len(beside) == 1 and leaves[0] not in table[beside[0]]:
            table[beside[0]].append(leaves[0])
    return table


def _alongside(matching: Matching, group: Group) -> list[Group]:
    """Of a fused weight and its parts what they made, its gradients and theirs: they are fused in the same way."""
    sides = (
        (matching.target, matching.classes_t, group.target),
        (matching.reference, matching.classes_r, group.reference),
    )
    found = []
    for related in (outputs, _gradient_of_output, _gradient):
        values: list[tuple[int, ...]] = []
        for flow, classes, leaves in sides:
            free = [[v for v in related(flow, leaf) if classes[v] < 0] for leaf in leaves]
            values.append(tuple(choice[0] for choice in free if len(choice) == 1))
        whole, parts = sorted(zip(values, sides, strict=True), key=lambda side: len(side[1][2]))
        complete = len(whole[0]) == 1 and len(set(parts[0])) == len(parts[1][2])
        if complete and _fits(whole[1][0], whole[0][0], parts[1][0], parts[0]):
            found.append(Group(*values))
    return found


def outputs(flow: Flow, leaf: int) -> list[int]:
    """What forward ops make of a leaf."""
    return list(dict.fromkeys(v for op in _readers(flow, leaf, "forward") for v in flow.writes[op]))


def _gradient_of_output(flow: Flow, leaf: int) -> list[int]:
    """Gradients of what forward ops made of a leaf: as the calls say, else what backward ops read beside it."""
    forward, backward = (_readers(flow, leaf, phase) for phase in ("forward", "backward"))
    made = [v for op in forward for v in flow.writes[op]]
    recorded = dict.fromkeys(flow.gradients[v] for v in made if v in flow.gradients)
    sizes = {int(flow.sizes[v]) for v in made}
    beside = dict.fromkeys(
        v for op in backward for v in flow.reads[op] if v != leaf and int(flow.sizes[v]) in sizes
    )
    return list(recorded or beside)


def _gradient(flow: Flow, leaf: int) -> list[int]:
    """The gradient of a leaf: by name, else what is made of its output's gradient and what it was read with."""
    name = flow.classes["parameter"].iat[leaf]
    if name and (
        named := np.flatnonzero((flow.classes["gradient_of"] == name).to_numpy()).tolist()
    ):
        return list(named)
    read_with = {v for op in _readers(flow, leaf, "forward") for v in flow.reads[op]} - {leaf}
    made = dict.fromkeys(
        v
        for incoming in _gradient_of_output(flow, leaf)
        for op in _readers(flow, incoming, "backward")
        if read_with & set(flow.reads[op])
        for v in flow.writes[op]
    )
    return [v for v in made if flow.sizes[v] == flow.sizes[leaf]]


def _readers(flow: Flow, value: int, phase: str) -> list[int]:
    return [op for op in flow.readers[value] if flow.phases[op] == phase]


def _disjoint(found: Mapping[Group, None]) -> tuple[Group, ...]:
    """Each class in one group at most: the first that claims it."""
    taken: set[tuple[int, int]] = set()
    kept = []
    for group in found:
        members = {(0, v) for v in group.target} | {(1, v) for v in group.reference}
        if not members & taken:
            taken |= members
            kept.append(group)
    return tuple(kept)
