"""Join recorded ops with the ops of the graph, and check the join.

The check compares each recorded input with the recorded output of its producer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from .file_names import encode_op_name, strip_op_number
from .graph import Dataflow, Slot, find_overwritten_outputs
from .record import Place, Record
from .records import compute_content

#: Share of edges with equal data at both ends from which a join is accepted, and share of the
#: recorded ops that it must find. Measured: 1.0 for a correct join, 0.9 for a wrong one.
_MIN_VERIFIED_SHARE = 0.99


@dataclass(frozen=True)
class Join:
    """The names under which the ops of a graph were recorded."""

    names: tuple[str, ...]  #: encoded, one for each op of the graph
    numbering: str  #: where the op numbers come from: renumbered, as printed, by content
    n_verified: int  #: edges whose two ends hold the same data
    n_checkable: int  #: edges recorded at both ends
    n_matched: int  #: recorded ops that are in the graph

    @property
    def is_accepted(self) -> bool:
        """Whether the data confirm it."""
        return self.n_verified >= _MIN_VERIFIED_SHARE * self.n_checkable


def join_records(flow: Dataflow, places: Mapping[Place, Record]) -> Join:
    """Return the join whose op numbers the data confirm best."""
    numberings = {
        "renumbered": tuple(encode_op_name(op.name) for op in flow.ops),
        "as printed": tuple(encode_op_name(op.printed_name) for op in flow.ops),
    }
    recorded_names = {place[0] for place in places}
    parameter_names = {encode_op_name(name) for name in flow.parameters}
    min_matched = _MIN_VERIFIED_SHARE * len(recorded_names - parameter_names)
    joins: list[Join] = []
    for numbering, names in numberings.items():
        join = _make_join(flow, names, numbering, places, recorded_names)
        if join.is_accepted and join.n_matched >= min_matched:
            return join
        joins.append(join)
    best_join = max(joins, key=lambda join: (join.n_matched, join.n_verified))
    if best_join.is_accepted:
        return best_join
    names = _match_names_by_content(flow, best_join.names, places)
    join = _make_join(flow, names, "by content", places, recorded_names)
    return join if join.n_verified > best_join.n_verified else best_join


def _make_join(
    flow: Dataflow,
    names: tuple[str, ...],
    numbering: str,
    places: Mapping[Place, Record],
    recorded_names: set[str],
) -> Join:
    n_verified, n_checkable = count_verified_edges(flow, names, places)
    n_matched = len(recorded_names.intersection(names))
    return Join(names, numbering, n_verified, n_checkable, n_matched)


def count_verified_edges(
    flow: Dataflow, names: Sequence[str], places: Mapping[Place, Record]
) -> tuple[int, int]:
    """Count the edges whose two ends hold the same data, and the edges recorded at both ends.

    Memory that was updated in place proves nothing and is not counted.
    """
    n_verified = n_checkable = 0
    overwritten = find_overwritten_outputs(flow)
    for op, name in zip(flow.ops, names, strict=True):
        for index, slot in enumerate(op.inputs):
            if slot is None or not slot.is_op_output or (slot.op, slot.output) in overwritten:
                continue
            input_content = _get_content(places, name, "input", index)
            output_content = _get_content(places, names[slot.op], "output", slot.output)
            if _are_comparable(input_content, output_content):
                n_checkable += 1
                n_verified += input_content == output_content
    return n_verified, n_checkable


def _get_content(places: Mapping[Place, Record], name: str, io: str, slot: int) -> Hashable:
    record = places.get((name, io, slot, 0))
    return record.content if record is not None else None


def _are_comparable(content: Hashable, other_content: Hashable) -> bool:
    """Whether both are from files or both from a csv.

    The statistics of a csv cannot be compared with the bytes of a file.
    """
    if not isinstance(content, tuple) or not isinstance(other_content, tuple):
        return False
    return type(content[0]) is type(other_content[0])


def _match_names_by_content(
    flow: Dataflow, names: Sequence[str], places: Mapping[Place, Record]
) -> tuple[str, ...]:
    """Return, for each op of the graph, the recorded op whose inputs equal its producers' outputs.

    Candidates are the recorded ops of the same scope and type. Of equal candidates the earliest is
    chosen, because time follows the order of the graph, if not strictly.
    """
    times: defaultdict[str, dict[str, int]] = defaultdict(dict)  # group -> op -> when it ran
    consumers: defaultdict[tuple[str, int, Hashable], list[str]] = defaultdict(list)
    for (name, io, index, occurrence), record in places.items():
        if occurrence > 0:
            continue
        group = strip_op_number(name)
        times[group][name] = record.time
        if io == "input" and record.content is not None:
            consumers[group, index, record.content].append(name)
    matched_names: list[str] = []
    for op, name in zip(flow.ops, names, strict=True):
        group = strip_op_number(name)
        candidate_times = times[group]
        votes: Counter[str] = Counter()
        if candidate_times:
            votes[min(candidate_times, key=candidate_times.__getitem__)] = 0
        for index, slot in enumerate(op.inputs):
            content = _find_source_content(places, slot, matched_names)
            if content is not None:
                voters = consumers[group, index, content]
                votes.update(voter for voter in voters if voter in candidate_times)
        best_name = _choose_candidate(votes, candidate_times, default=name)
        candidate_times.pop(best_name, None)
        matched_names.append(best_name)
    return tuple(matched_names)


def _choose_candidate(votes: Mapping[str, int], times: Mapping[str, int], default: str) -> str:
    """Return the name with most votes, of equal ones the earliest; ``default`` if there is none."""
    return max(votes, key=lambda name: (votes[name], -times[name]), default=default)


def _find_source_content(
    places: Mapping[Place, Record], slot: Slot | None, matched_names: Sequence[str]
) -> Hashable:
    """Return the content that a slot reads, as recorded at its source; None if it is not recorded.

    The source is an earlier op, a parameter, or a constant of the graph.
    """
    if slot is None:
        return None
    if slot.constant is not None:
        return compute_content(slot.constant.values, slot.constant.dtype)
    if slot.parameter:
        return _get_content(places, encode_op_name(slot.parameter), "output", 0)
    if 0 <= slot.op < len(matched_names):
        return _get_content(places, matched_names[slot.op], "output", slot.output)
    return None
