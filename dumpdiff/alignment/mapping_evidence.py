"""Pairs that someone named, in a mapping file: evidence weaker than values, so that a wrong name does little harm."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph import Flow
from ..model.trace import FORWARD
from ..rulebook import Rules
from .anchors import contradicts
from .matches import Matching

_Slots = dict[tuple[str, str], int]


def kinds_of(flow: Flow, rules: Rules, *, target: bool) -> list[str]:
    """Canonical kind of every op; of the target's APIs that a mapping names, the kind of the other side's."""
    said = rules.named.kinds if target else {}
    return [rules.kind(said.get(kind, kind)) for kind in flow.trace.ops["kind"]]


def by_name(matching: Matching, rules: Rules, *, parted: bool) -> bool:
    """Pair classes whose slots a mapping names together; true if any pair was added.

    First those whose values agree, which a name tells from others that look the same. Where the runs have ``parted``,
    others too, if what they were made of does not contradict it: of the forward pass, since msprobe has numbered
    backward calls in two ways.
    """
    progress = False
    for t, r in _named(matching, rules):
        if not matching.may_pair(t, r):
            continue
        if matching.distance(t, r) <= matching.tolerance:
            progress |= matching.pair(t, r, "name", 0.85)
        elif parted and not contradicts(matching, t, r) and _forward(matching, t, r):
            progress |= matching.pair(t, r, "name", 0.7)
    return progress


def _named(matching: Matching, rules: Rules) -> Iterator[tuple[int, int]]:
    named = rules.named
    if not named.tensors and not named.modules:
        return
    target, reference = _slots(matching.target), _slots(matching.reference)
    for slot, other in named.tensors.items():
        if slot in target and other in reference:
            yield target[slot], reference[other]
    for (op, place), value in target.items() if named.modules else ():
        yield from (
            (value, reference[name, place])
            for name in named.module(op)
            if (name, place) in reference
        )


def _slots(flow: Flow) -> _Slots:
    """(name of an op, slot) -> the class of the value in it."""
    names = flow.trace.ops["name"].tolist()
    rows = zip(
        flow.tensors["op"].tolist(),
        flow.tensors["slot"].tolist(),
        flow.tensor_class.tolist(),
        strict=True,
    )
    return {(names[op], slot): value for op, slot, value in rows if value >= 0}


def _forward(matching: Matching, t: int, r: int) -> bool:
    return bool(
        matching.target.column("phase")[t] == matching.reference.column("phase")[r] == FORWARD
    )
