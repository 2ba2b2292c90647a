"""Gradients of values that only one side uses for something else, too.

What flows back to a value is the sum over all its uses. If one side computes the next value from
it, and the other side computes that from something else, the gradient of one is a share of the
other: both are right, and they differ. A direction is cut from the offset of a point from the
camera, and one side transforms the point by that offset, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import Flow, Gradients
from ..graph.missing_edges import find_bridge, has_missing_producer
from ..model.arrays import Flags, Ints
from ..model.trace import BACKWARD, FORWARD
from .matches import Matching
from .values import compute_distances

#: Relative difference of gradients from which on one may lack a share; less may be noise.
_MIN_SHARE = 1e-3
#: Values whose uses are looked at, the first ones: what differs after them follows from them.
_MAX_CHECKED = 512
#: Evidence of pairs of gradients.
_EVIDENCE = "gradient"
#: Values after one that are searched for those with partners.
_MAX_VALUES = 64

#: Gradient -> the values whose uses it adds up.
_Values = Mapping[int, set[int]]


def separate_shares(matching: Matching, target: Gradients, reference: Gradients) -> None:
    """Unpair gradients that differ where the values have other uses on the other side.

    So is what flows back from such values through the ops that computed them. A gradient that
    follows from others that differ is left as it is, unless these are separated.
    """
    paired = np.flatnonzero(matching.classes_t >= 0)
    distances = compute_distances(
        matching.prints_t, paired, matching.prints_r, matching.classes_t[paired]
    )
    differs = np.zeros(len(matching.classes_t), dtype=bool)
    differs[paired[distances > _MIN_SHARE]] = True
    values_of_sides = _index_values(target), _index_values(reference)
    open_gradients = [
        t for t in np.flatnonzero(differs).tolist() if matching.evidence[t] == _EVIDENCE
    ]
    flows = (matching.target, matching.reference)
    partners = (matching.classes_t, matching.classes_r)
    n_checked = 0
    while open_gradients:
        candidates = [
            t for t in open_gradients if not _follows_from_differences(matching, t, differs)
        ]
        uses = [
            (t, value) for t in candidates for value in _list_values(matching, values_of_sides, t)
        ]
        uses = uses[: _MAX_CHECKED - n_checked]
        n_checked += len(uses)
        shares = {t for t, value in uses if has_other_use(flows, partners, value)}
        if not shares:
            return
        for t in shares:  # what follows from them was left as it is, and has its turn now
            matching.unpair(t, int(matching.classes_t[t]))
            differs[t] = False
        open_gradients = [t for t in open_gradients if t not in candidates]


def _list_values(
    matching: Matching, values_of_sides: tuple[_Values, _Values], gradient_t: int
) -> list[int]:
    """Return the values whose gradients are a pair, and with which other ops compute."""
    values_t, values_r = values_of_sides
    gradient_r = int(matching.classes_t[gradient_t])
    return [
        value
        for value in values_t[gradient_t]
        if matching.classes_t[value] in values_r[gradient_r] and _is_used_otherwise(matching, value)
    ]


def _is_used_otherwise(matching: Matching, value_t: int) -> bool:
    """Return whether the forward passes compute with two partners by other ops."""
    kinds = [
        Counter(side_kinds[op] for op in _list_uses(flow, value))
        for flow, side_kinds, value in (
            (matching.target, matching.kinds_t, value_t),
            (matching.reference, matching.kinds_r, int(matching.classes_t[value_t])),
        )
    ]
    return kinds[0] != kinds[1]


def _list_uses(flow: Flow, value: int) -> list[int]:
    """Return the ops of the forward pass that compute with a value, without calls of modules."""
    users = flow.users[value]
    return [op for op in users if flow.phases[op] == FORWARD and not flow.is_module[op]]


def _index_values(gradients: Gradients) -> _Values:
    """Return gradient -> the values whose uses it adds up: its own, and that it flows back from."""
    values: defaultdict[int, set[int]] = defaultdict(set)
    for value, gradient in gradients.by_value.items():
        values[gradient].add(value)
    for (output, _, _), gradient in gradients.by_edge.items():
        values[gradient].add(output)
    return values


def _follows_from_differences(matching: Matching, t: int, differs: Flags) -> bool:
    """Return whether all gradients that a target's gradient is computed from differ."""
    flow = matching.target
    producer = int(flow.producers[t])
    if producer < 0:
        return False
    gradients = [
        value
        for value in flow.operands[producer]
        if matching.classes_t[value] >= 0 and flow.list_column("phase")[value] == BACKWARD
    ]
    return bool(gradients) and all(differs[value] for value in gradients)


def has_other_use(flows: tuple[Flow, Flow], partners: tuple[Ints, Ints], value_t: int) -> bool:
    """Return whether something is computed from one of two partners, but not from the other one.

    ``flows`` are those of the target and of the reference, ``partners`` the partner of each class
    of either side, -1 for none. ``value_t`` is the target's value.
    """
    values = (value_t, int(partners[0][value_t]))
    for side, other in ((0, 1), (1, 0)):
        for end in _list_ends(flows[side], partners[side], values[side]):
            if not _may_follow(flows[other], int(partners[side][end]), values[other]):
                return True
    return False


def _list_ends(flow: Flow, partners: Ints, value: int) -> list[int]:
    """Return the nearest values with partners that the forward pass computes from a value."""
    ends: list[int] = []
    open_values, seen = [value], {value}
    for source in open_values:  # grows on the way
        for op in _list_uses(flow, source):
            for result in flow.writes[op]:
                if result in seen or flow.producers[result] != op:
                    continue
                seen.add(result)
                if partners[result] >= 0:
                    ends.append(result)
                elif len(seen) < _MAX_VALUES:
                    open_values.append(result)
    return ends


def _may_follow(flow: Flow, value: int, source: int) -> bool:
    """Return whether a value is computed from another one, as far as the record shows."""
    first_op = int(flow.producers[source])
    open_values, seen = [value], {value}
    while open_values:
        current = open_values.pop()
        if current == source:
            return True
        producer = int(flow.producers[current])
        sources: Sequence[int] = flow.operands[producer] if producer > first_op else ()
        if producer < 0 and has_missing_producer(flow, current):
            bridge = find_bridge(flow, current)
            if bridge is None:
                return True
            sources = bridge.parents
        operands = [operand for operand in sources if operand not in seen]
        seen.update(operands)
        open_values += operands
    return False
