"""Which recorded op is which op of the graph, and the proof: what an op wrote is what its readers read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from .mindspore_graph import Dataflow, GraphOp, overwritten
from .mindspore_names import encode, group
from .mindspore_records import Place, Record

_GOOD = 0.99  #: share of equal edges from which a join is believed; the measured share is 1.0 when right, 0.9 when not


@dataclass(frozen=True)
class Join:
    """The names under which the ops of a graph were recorded."""

    names: tuple[str, ...]  #: encoded, one per op of the graph
    rule: str  #: how they were found, in words
    verified: int  #: edges whose two ends hold the same data
    checkable: int  #: edges recorded at both ends


def join(flow: Dataflow, places: Mapping[Place, Record]) -> Join:
    """The rule for op numbers that the data confirm best."""
    recorded = {place[0] for place in places}
    rules = {
        "renumbered": tuple(encode(op.name) for op in flow.ops),
        "as printed": tuple(encode(op.printed) for op in flow.ops),
    }
    tried: list[tuple[int, Join]] = []
    for rule, names in rules.items():
        found = Join(names, rule, *verify(flow, names, places))
        tried.append((len(recorded.intersection(names)), found))
        if _believed(found) and tried[-1][0] >= _GOOD * len(recorded - _parameters(flow)):
            return found
    best = max(tried, key=lambda one: (one[0], one[1].verified))[1]
    if _believed(best):
        return best
    names = _by_content(flow, best.names, places)
    by_content = Join(names, "by content", *verify(flow, names, places))
    return by_content if by_content.verified > best.verified else best


def verify(flow: Dataflow, names: Sequence[str], places: Mapping[Place, Record]) -> tuple[int, int]:
    """(edges whose two ends hold the same data, edges that were recorded at both ends in the same way).

    Memory that was updated in place proves nothing and is not counted.
    """
    verified = checkable = 0
    changed = overwritten(flow)
    for op, name in zip(flow.ops, names, strict=True):
        for at, slot in enumerate(op.inputs):
            if slot is None or slot.op < 0 or (slot.op, slot.output) in changed:
                continue
            read = _content(places, name, "input", at)
            written = _content(places, names[slot.op], "output", slot.output)
            if read is not None and written is not None and _comparable(read, written):
                checkable += 1
                verified += read == written
    return verified, checkable


def _believed(found: Join) -> bool:
    return found.verified >= _GOOD * found.checkable


def _parameters(flow: Dataflow) -> set[str]:
    return {encode(name) for name in flow.parameters}


def _content(places: Mapping[Place, Record], name: str, io: str, slot: int) -> Hashable:
    record = places.get((name, io, slot, 0))
    return record.content if record is not None else None


def _comparable(one: Hashable, other: Hashable) -> bool:
    """Both from files or both from a csv, whose printed statistics are no match for a file's bytes."""
    return isinstance(one, tuple) and isinstance(other, tuple) and type(one[0]) is type(other[0])


def _by_content(flow: Dataflow, names: Sequence[str], places: Mapping[Place, Record]) -> tuple[str, ...]:
    """Inside every scope and type, the recorded op whose inputs hold what the graph says was written for it."""
    free: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted({place[0] for place in places}):
        free[group(name)].append(name)
    chosen: list[str] = []
    for op, name in zip(flow.ops, names, strict=True):
        candidates = free[group(name)]
        ranked = [(_agreement(op, candidate, chosen, places), candidate == name) for candidate in candidates]
        if ranked:
            best = max(range(len(ranked)), key=lambda at: ranked[at])
            chosen.append(candidates.pop(best))
        else:
            chosen.append(name)
    return tuple(chosen)


def _agreement(op: GraphOp, candidate: str, chosen: Sequence[str], places: Mapping[Place, Record]) -> int:
    score = 0
    for at, slot in enumerate(op.inputs):
        if slot is None or not 0 <= slot.op < len(chosen):
            continue
        read = _content(places, candidate, "input", at)
        written = _content(places, chosen[slot.op], "output", slot.output)
        if read is not None and written is not None and _comparable(read, written):
            score += 1 if read == written else -1
    return score
