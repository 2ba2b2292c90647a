"""Which findings of a rank were received from another rank through communication.

A collective whose own input agrees and whose output differs brought the error from another member
of its group. The error is followed to the rank whose input of the same collective differs, and from
there, if that rank received it too, further back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..model.finding import Finding
from ..model.run_result import CollectiveState, TaskResult

_TRANSFERS = ("send", "recv")
#: Kinds of collectives whose output depends on the input of one member only.
_ONE_TO_ALL = ("broadcast", "scatter")

#: (rank, position of the finding in its task's result)
FindingKey = tuple[int, int]
UNSEEN = -1  #: in place of the position: the rank gave a wrong value, but has no finding before it


@dataclass(frozen=True)
class Source:
    """Where a received error came from."""

    receiver: int
    collective: CollectiveState  #: as the receiving rank took part in it
    #: ranks whose input of that collective differs
    ranks: tuple[int, ...]
    #: ranks whose input is not known: not read, not recorded, or not compared
    unknown_ranks: tuple[int, ...]
    givers: Mapping[int, CollectiveState]  #: rank whose input differs -> its record


class StepCommunication:
    """The collectives of all ranks in one step, joined by group and order."""

    def __init__(self, tasks: Sequence[TaskResult]) -> None:
        self.tasks: dict[int, TaskResult] = {}
        for task in tasks:
            if task.rank is not None and not task.problem:
                self.tasks[task.rank] = task
        self._collectives: dict[tuple[object, ...], dict[int, CollectiveState]]
        self._collectives = defaultdict(dict)
        for rank, task in self.tasks.items():
            for collective in task.collectives:
                self._collectives[self._get_key(rank, collective)][rank] = collective

    def _get_key(self, rank: int, collective: CollectiveState) -> tuple[object, ...]:
        """Return what the records of one collective have in common on all its ranks."""
        if collective.kind in _TRANSFERS and collective.peer >= 0:
            ends = (rank, collective.peer) if collective.kind == "send" else (collective.peer, rank)
            return ("transfer", ends, collective.order)
        group: object = collective.members or collective.group
        return (collective.kind, group, collective.order)

    def find_records(self, rank: int, collective: CollectiveState) -> dict[int, CollectiveState]:
        """Return the same collective as each of its ranks recorded it."""
        return self._collectives[self._get_key(rank, collective)]

    def list_members(self, rank: int, collective: CollectiveState) -> tuple[int, ...]:
        """Return the ranks that take part in a collective, as far as they are known."""
        if collective.kind in _TRANSFERS and collective.peer >= 0:
            return tuple(sorted((rank, collective.peer)))
        return collective.members or tuple(sorted(self.find_records(rank, collective)))

    def find_source(self, rank: int, finding: Finding) -> Source | None:
        """Return where the error of a finding came from, None if it was not received.

        It was received if an op of the finding is a collective whose output differs, whose own
        input does not, and to which another rank gave an input that differs. If no rank's input
        differs, the collective itself is wrong.
        """
        for collective in self._list_finding_collectives(rank, finding):
            if collective.has_differing_input:
                continue
            source = self._find_differing_inputs(rank, collective)
            if source.ranks:
                return source
        return None

    def _list_finding_collectives(self, rank: int, finding: Finding) -> Iterator[CollectiveState]:
        """Yield the collectives among the ops of a finding."""
        names = set(finding.target_ops)
        for collective in self.tasks[rank].collectives:
            if collective.op in names:
                yield collective

    def _find_differing_inputs(self, rank: int, collective: CollectiveState) -> Source:
        records = self.find_records(rank, collective)
        differing_ranks = []
        unknown_ranks = []
        givers = {}
        for member in self.list_members(rank, collective):
            if member == rank:
                continue
            record = records.get(member)
            if record is None or not record.input_state:
                is_silent = collective.kind in _ONE_TO_ALL and member != collective.peer
                if not is_silent:
                    unknown_ranks.append(member)
            elif record.has_differing_input:
                differing_ranks.append(member)
                givers[member] = record
        return Source(rank, collective, tuple(differing_ranks), tuple(unknown_ranks), givers)

    def find_suspects(self, rank: int, finding: Finding) -> tuple[int, ...]:
        """Return the ranks from which a finding at a collective may have come, unread ones too."""
        suspects: set[int] = set()
        for collective in self._list_finding_collectives(rank, finding):
            if not collective.has_differing_input:
                suspects.update(self._find_differing_inputs(rank, collective).unknown_ranks)
        return tuple(sorted(suspects))


def find_sources(
    communication: StepCommunication, keys: Sequence[FindingKey]
) -> dict[FindingKey, Source]:
    """Return the received ones among the findings of one step, with their source."""
    sources = {}
    for rank, index in keys:
        task = communication.tasks[rank]
        source = communication.find_source(rank, task.findings[index])
        if source is not None:
            sources[rank, index] = source
    return sources


def follow_to_origin(
    key: FindingKey, sources: Mapping[FindingKey, Source], communication: StepCommunication
) -> FindingKey | None:
    """Return the finding in which a received error began.

    If a rank gave something that differs although nothing before it is a finding, the error began
    there, in what no value shows: its key has :data:`UNSEEN` in place of a finding's number. None
    if the error goes round in a circle.
    """
    visited = {key}
    unseen_origins: list[FindingKey] = []
    pending = [key]
    while pending:
        current = pending.pop(0)
        if current not in sources:
            return current
        source = sources[current]
        for rank in source.ranks:
            candidates = _list_candidates(communication, rank, source)
            if not candidates:
                unseen_origins.append((rank, UNSEEN))
            for index in candidates:
                if (rank, index) not in visited:
                    visited.add((rank, index))
                    pending.append((rank, index))
    return unseen_origins[0] if unseen_origins else None


def _list_candidates(communication: StepCommunication, rank: int, source: Source) -> list[int]:
    """Return the findings of a rank that can have made its input of a collective differ.

    Findings after the collective cannot; those of given values (parameters, batch) have no place.
    """
    task = communication.tasks[rank]
    record = communication.find_records(source.receiver, source.collective).get(rank)
    limit = None if record is None else record.position
    candidates = []
    for index, finding in enumerate(task.findings):
        has_place = not finding.is_given and finding.kind != "input"
        is_later = limit is not None and task.positions[index] > limit and has_place
        if finding.kind != "isolated" and not is_later:
            candidates.append(index)
    return candidates
