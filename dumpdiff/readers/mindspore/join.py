"""Which recorded op is which op of the graph, and the proof: what an op wrote is what its readers read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from .file_names import encode_op_name, strip_op_number
from .graph import Dataflow, Slot, find_overwritten_outputs
from .records import Place, Record, compute_content

_GOOD = 0.99  #: share of equal edges from which a join is believed; the measured share is 1.0 when right, 0.9 when not


@dataclass(frozen=True)
class Join:
    """The names under which the ops of a graph were recorded."""

    names: tuple[str, ...]  #: encoded, one per op of the graph
    numbering: str  #: how they were found, in words
    n_verified: int  #: edges whose two ends hold the same data
    n_checkable: int  #: edges recorded at both ends
    n_matched: int  #: recorded ops that are in the graph


def join_records(flow: Dataflow, places: Mapping[Place, Record]) -> Join:
    """The rule for op numbers that the data confirm best."""
    recorded = {place[0] for place in places}
    rules = {
        "renumbered": tuple(encode_op_name(op.name) for op in flow.ops),
        "as printed": tuple(encode_op_name(op.printed_name) for op in flow.ops),
    }
    wanted = _GOOD * len(recorded - {encode_op_name(name) for name in flow.parameters})
    tried: list[Join] = []
    for rule, names in rules.items():
        tried.append(
            Join(
                names, rule, *count_verified_edges(flow, names, places), n_matched=len(recorded.intersection(names))
            )
        )
        if _believed(tried[-1]) and tried[-1].n_matched >= wanted:
            return tried[-1]
    best = max(tried, key=lambda one: (one.n_matched, one.n_verified))
    if _believed(best):
        return best
    names = _by_content(flow, best.names, places)
    by_content = Join(
        names, "by content", *count_verified_edges(flow, names, places), n_matched=len(recorded.intersection(names))
    )
    return by_content if by_content.n_verified > best.n_verified else best


def count_verified_edges(flow: Dataflow, names: Sequence[str], places: Mapping[Place, Record]) -> tuple[int, int]:
    """(edges whose two ends hold the same data, edges that were recorded at both ends in the same way).

    Memory that was updated in place proves nothing and is not counted.
    """
    verified = checkable = 0
    changed = find_overwritten_outputs(flow)
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
    return found.n_verified >= _GOOD * found.n_checkable


def _content(places: Mapping[Place, Record], name: str, io: str, slot: int) -> Hashable:
    record = places.get((name, io, slot, 0))
    return record.content if record is not None else None


def _comparable(one: Hashable, other: Hashable) -> bool:
    """Both from files or both from a csv, whose printed statistics are no match for a file's bytes."""
    return isinstance(one, tuple) and isinstance(other, tuple) and type(one[0]) is type(other[0])


def _by_content(
    flow: Dataflow, names: Sequence[str], places: Mapping[Place, Record]
) -> tuple[str, ...]:
    """Inside every scope and type, the recorded op whose inputs hold what the graph says was written for it.

    Of equal ones the earliest: time follows the order of the graph, if not strictly.
    """
    free: defaultdict[str, dict[str, int]] = defaultdict(dict)  # group -> op -> when it ran
    readers: defaultdict[tuple[str, int, Hashable], list[str]] = defaultdict(list)
    for (name, io, at, occurrence), record in places.items():
        if occurrence == 0:
            free[strip_op_number(name)][name] = record.time
            if io == "input" and record.content is not None:
                readers[strip_op_number(name), at, record.content].append(name)
    chosen: list[str] = []
    for op, name in zip(flow.ops, names, strict=True):
        left = free[strip_op_number(name)]
        votes: Counter[str] = Counter(
            dict.fromkeys([min(left, key=left.__getitem__)], 0) if left else {}
        )
        for at, slot in enumerate(op.inputs):
            written = _source(places, slot, chosen)
            if written is not None:
                votes.update(one for one in readers[strip_op_number(name), at, written] if one in left)
        best = max(votes, key=lambda one: (votes[one], -left[one]), default=name)
        left.pop(best, None)
        chosen.append(best)
    return tuple(chosen)


def _source(places: Mapping[Place, Record], slot: Slot | None, chosen: Sequence[str]) -> Hashable:
    """What a slot reads, as it was recorded where it comes from: an earlier op, a parameter, or the graph itself."""
    if slot is None:
        return None
    if slot.constant is not None:
        return compute_content(slot.constant.values, slot.constant.dtype)
    if slot.parameter:
        return _content(places, encode_op_name(slot.parameter), "output", 0)
    return (
        _content(places, chosen[slot.op], "output", slot.output)
        if 0 <= slot.op < len(chosen)
        else None
    )
